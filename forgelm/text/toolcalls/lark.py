"""Pieces of llguidance's Lark: literals, lazy text up to a mark, and the objects that most formats call tools with.

A mark that is one special token of the vocabulary has to be named by its id: no text in a grammar matches such a token.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from forgelm.text.toolcalls.tools import Tool, ToolUse

TokenOf = Callable[[str], int | None]
"""The id of a text that is one special token of the vocabulary; None for all other texts."""

ANY = r"(.|\n)*"
ANY_OBJECT = {"type": "object"}


def literal(text: str) -> str:
    """A terminal that matches `text`."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def pattern(text: str) -> str:
    """`text` within a regular expression."""
    return re.sub(r"[^A-Za-z0-9_ <>=:\"]", lambda found: f"\\x{{{ord(found.group()):x}}}", text)


class Writer:
    """Writes the rules of one grammar."""

    def __init__(self, token_of: TokenOf) -> None:
        self._token_of = token_of
        self._rules: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Add a rule, once if it is added again; its name. `name` may hold options in brackets, or a parameter."""
        self._rules[name] = body
        return re.split(r"\[|::", name, maxsplit=1)[0]

    def token(self, mark: str) -> int | None:
        """The id of `mark` where it is a special token."""
        return self._token_of(mark) if mark else None

    def mark(self, mark: str) -> str:
        """What matches `mark`, special or not."""
        token = self.token(mark)
        return literal(mark) if token is None else f"<[{token}]>"

    def until(self, name: str, mark: str) -> str:
        """What matches any text up to the first `mark`, and `mark`; a rule called `name` if need be."""
        token = self.token(mark)
        if token is not None:
            return f"TEXT <[{token}]>"
        return self.rule(f"{name}[lazy]", f"/{ANY}{pattern(mark)}/")

    def text(self, start: str) -> str:
        """The whole grammar, beginning with `start`."""
        rules = {"start": start, "TEXT": f"/{ANY}/", "SPACE": r"/[ \t\r\n]{1,4}/", **self._rules}
        return "".join([f"{name}: {body}\n" for name, body in rules.items()])


def json_value(schema: dict[str, Any], *, strict: bool) -> str:
    """A nonterminal that matches JSON of `schema`, spaced as chat templates write it.

    What llguidance doesn't know of a schema is an error where the tool is strict, and left out where it isn't.
    """
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": not strict}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def arguments(tool: Tool) -> str:
    """A nonterminal that matches a tool's arguments as a JSON object."""
    return json_value({**ANY_OBJECT, **tool.parameters}, strict=tool.strict)


def alternatives(writer: Writer, use: ToolUse, name: str, write: Callable[[int, Tool], str]) -> str:
    """A rule that is one of the tools that may be called, each as `write` has it."""
    names = [writer.rule(f"{name}-{index}", write(index, tool)) for index, tool in enumerate(use.callable())]
    return writer.rule(name, " | ".join(names))


def repeated(first: str, again: str, use: ToolUse) -> str:
    """`first`, and where calls may be parallel any number of `again`."""
    return f"{first} ({again})*" if use.parallel else first
