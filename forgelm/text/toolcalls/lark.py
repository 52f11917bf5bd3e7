"""Pieces of llguidance's Lark: literals, lazy text up to a mark, and the objects that most formats call tools with.

A mark that is one special token of the vocabulary has to be named by its id: no text in a grammar matches such a token.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from forgelm.errors import InvalidRequest
from forgelm.text.structured import embed_schema
from forgelm.text.structured.limits import compile_once, refuse
from forgelm.text.toolcalls.schemas import Schema
from forgelm.text.toolcalls.tools import Tool, ToolUse

TokenOf = Callable[[str], int | None]
"""The id of a text that is one special token of the vocabulary; None for all other texts."""

ANY = r"(.|\n)*"
LARGEST = 512 * 1024
"""Characters of a grammar, schemas included: a few hundred tools, and about a second to compile."""
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")


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
        self._made = 0
        self._size = 0

    def rule(self, name: str, body: str) -> str:
        """Add a rule, once if it is added again; its name. `name` may hold options in brackets, or a parameter.

        Raises `InvalidRequest` where the grammar grows over `LARGEST`.
        """
        self._size += len(body)
        if self._size > LARGEST:
            refuse(f"the grammar that these tools need is over {LARGEST} characters", "tools")
        self._rules[name] = body
        return re.split(r"\[|::", name, maxsplit=1)[0]

    def fresh(self, name: str) -> str:
        """A name that no rule has, made of `name`."""
        self._made += 1
        return f"{name}-{self._made}"

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

    def text(self, start: str, *, form: str | None = None, param: str = "tools") -> str:
        """The whole grammar, beginning with `start`, which may refer to the grammar `form` as `@body`.

        Raises `InvalidRequest`, naming `param`, if it is too large.
        """
        rules = {"start": start, "TEXT": f"/{ANY}/", "SPACE": r"/[ \t\r\n]{1,4}/", **self._rules}
        text = "".join([f"{name}: {body}\n" for name, body in rules.items()])
        # The vocabulary that grammars are checked with has no special tokens, so another text stands for them there.
        checked = re.sub(r"<\[[0-9]+\]>", '"<>"', text)
        compile_once(checked if form is None else _nested(checked, form), param)
        return text if form is None else _nested(text, form)


def _nested(outer: str, body: str) -> str:
    """Both in llguidance's JSON form: `outer` refers to `body` as `@body`."""
    inner: dict[str, Any] = {"lark_grammar": body}
    rest: list[dict[str, Any]] = []
    if body.lstrip().startswith("{"):
        inner, *rest = json.loads(body)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**inner, "name": "body"}, *rest]})


def json_value(schema: Schema, param: str, *, strict: bool) -> str:
    """A nonterminal that matches JSON of `schema`, which came as the request's field `param`.

    What can't be enforced is refused where the tool is strict; where it isn't, the type alone is enforced then. Raises
    `InvalidRequest`.
    """
    try:
        return f"%json {embed_schema(schema, param)}"
    except InvalidRequest:
        if strict:
            raise
        kind = schema.get("type")
        return f"%json {embed_schema({'type': kind} if kind in TYPES else {}, param)}"


def arguments(tool: Tool, param: str) -> str:
    """A nonterminal that matches a tool's arguments as a JSON object."""
    return json_value({"type": "object", **tool.parameters}, param, strict=tool.strict)


def alternatives(writer: Writer, use: ToolUse, name: str, write: Callable[[Tool, str], str]) -> str:
    """A rule that is one of the tools that may be called, each as `write` has it, given where its schema came from."""
    bodies = {
        index: write(tool, f"tools[{index}].function.parameters")
        for index, tool in enumerate(use.tools)
        if use.may_call(tool)
    }
    names = [writer.rule(f"{name}-{index}", body) for index, body in bodies.items()]
    return writer.rule(name, " | ".join(names))


def repeated(first: str, again: str, use: ToolUse) -> str:
    """`first`, and where calls may be parallel any number of `again`."""
    return f"{first} ({again})*" if use.parallel else first
