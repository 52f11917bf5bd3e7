"""The values of Qwen 3.5's calls, made into JSON as they stream.

One line break on each side of a value is markup; it ends at the first `\\n</parameter>\\n`, so no string holds that.
Which values are strings says the tool's schema. Where that allows strings and other types, text that reads as JSON of
another allowed type is that, and so it is where the schema says nothing. A value that is none of what the schema allows
is passed on as what it looks like: what to do with it is the tool's affair. A parameter that comes twice counts as it
came first.
"""

import json
from collections.abc import Callable
from typing import Any

from forgelm.text.toolcalls.json_text import Emit
from forgelm.text.toolcalls.schemas import properties, type_of, types
from forgelm.text.toolcalls.source import Source, Waiting

END = "\n</parameter>\n"
WORDS = {"True": "true", "False": "false", "None": "null"}
"""What the chat template itself makes of these values in the history of a conversation."""


class Arguments:
    """The object that one call's parameters become. What was given out is closed by `end` at any time."""

    def __init__(self, parameters: dict[str, Any], source: Source, emit: Emit) -> None:
        """`parameters` is the tool's schema."""
        self._root = parameters
        self._known = properties(parameters)
        self._source = source
        self._emit = emit
        self._seen: set[str] = set()
        self._given = 0
        emit("{")

    def read(self, key: str) -> Waiting:
        """Read a parameter's value and its end. False if the end doesn't come."""
        yield from self._source.takes("\n")
        if key in self._seen:
            return (yield from self._raw(lambda _: None))
        self._seen.add(key)
        kinds = types(self._known.get(key, {}), self._root)
        if kinds == {"string"}:
            return (yield from self._stream(key))
        if kinds == {"string", "null"} and (yield from self._source.ahead(4)) not in ("null", "None"):
            return (yield from self._stream(key))
        parts: list[str] = []
        whole = yield from self._raw(parts.append)
        if whole:
            self._emit(self._head(key) + convert("".join(parts), kinds))
        return whole

    def end(self) -> None:
        """No parameter follows."""
        self._emit("}")

    def _stream(self, key: str) -> Waiting:
        """A string, given out as it comes."""
        begun = False

        def emit(text: str) -> None:
            nonlocal begun
            self._emit(("" if begun else self._head(key) + '"') + json.dumps(text, ensure_ascii=False)[1:-1])
            begun = True

        whole = yield from self._raw(emit)
        if whole and not begun:
            emit("")
        if begun:
            self._emit('"')
        return whole

    def _raw(self, emit: Callable[[str], None]) -> Waiting:
        """The text of a value, and its end."""
        empty = END.removeprefix("\n")
        if (yield from self._source.takes(empty)):
            return True
        found = yield from self._source.until((END,), emit, tail=False)
        if found is not None:
            self._source.at += len(END)
        return found is not None

    def _head(self, key: str) -> str:
        self._given += 1
        return ("" if self._given == 1 else ", ") + json.dumps(key, ensure_ascii=False) + ": "


def convert(text: str, kinds: frozenset[str]) -> str:
    """The JSON of a value that was written as `text`, where a schema allows the types `kinds`."""
    for written in (text.strip(), WORDS.get(text.strip(), "")):
        value = _decode(written)
        if value is not _NOTHING and type_of(value) in kinds and not isinstance(value, str):
            return written
    value = _decode(text.strip())
    if "string" in kinds or value is _NOTHING:
        return json.dumps(text, ensure_ascii=False)
    return text.strip()


_NOTHING = object()


def _decode(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(word: str) -> Any:
    raise ValueError(word)
