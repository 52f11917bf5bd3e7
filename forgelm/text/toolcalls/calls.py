"""Calls as JSON objects, `{"name": …, "arguments": {…}}`, alone or in an array: what most formats have inside."""

import json
from collections.abc import Collection

from forgelm.text.output import CallSink
from forgelm.text.toolcalls.json_text import Emit, read_json, read_string
from forgelm.text.toolcalls.source import Source, Waiting

ARGUMENTS = ("arguments", "parameters")
"""Keys of the arguments: models mix them up."""
BESIDE = ("type", "id", "index")
"""Keys that may stand before the name; others show that the object is no call."""


def read_calls(source: Source, sink: CallSink, names: Collection[str]) -> Waiting:
    """Read calls one after the other, with or without brackets and commas. False if the first isn't one."""
    yield from source.takes("[")
    yield from source.space()
    if not (yield from read_call(source, sink, names)):
        return False
    while not sink.cut:
        source.hold()
        yield from source.space()
        yield from source.takes(",")
        yield from source.space()
        if not (yield from read_call(source, sink, names)):
            source.back()
            break
    yield from source.space()
    yield from source.takes("]")
    return True


def read_call(source: Source, sink: CallSink, names: Collection[str]) -> Waiting:
    """Read one call of a tool in `names`, its keys in any order. False if it isn't one.

    It begins as soon as the name is known; arguments that come before it wait for it.
    """
    if not (yield from source.takes("{")):
        return False
    call = _Call(source, sink, names)
    return call.end(whole=(yield from call.members()))


def read_arguments(source: Source, emit: Emit) -> Waiting:
    """Read a call's arguments: an object, or a string that holds one. False if they were broken off."""
    opening = yield from source.starts("{", '"', "null")
    if opening == "{":
        return (yield from read_json(source, emit))
    if opening == "null":
        source.at += len(opening)
    text = (yield from read_string(source)) if opening == '"' else None
    encoded = text is not None and _is_object(text)
    emit(text if text is not None and encoded else "{}")
    return encoded or opening == "null"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class _Call:
    """One call's object, from behind its opening brace on."""

    def __init__(self, source: Source, sink: CallSink, names: Collection[str]) -> None:
        self._source = source
        self._sink = sink
        self._names = names
        self._begun = False
        self._early = ""
        """Arguments that came before the name."""
        self._seen = False
        """Arguments have come."""
        self._given = False
        """They were whole."""

    def members(self) -> Waiting:
        """Read up to the closing brace. False where something is missing, or isn't a call's."""
        comma = True
        while True:
            yield from self._source.space()
            if (yield from self._source.takes("}")):
                return True
            if not comma and not (yield from self._source.takes(",")):
                return False
            comma = False
            yield from self._source.space()
            key = yield from read_string(self._source)
            if key is None or not (self._begun or key in ("name", *ARGUMENTS, *BESIDE)):
                return False
            yield from self._source.space()
            if not (yield from self._source.takes(":")):
                return False
            yield from self._source.space()
            if not (yield from self._member(key)):
                return False

    def end(self, *, whole: bool) -> bool:
        """Whether it was a call, which is complete now."""
        if not self._begun:
            return False
        if not self._seen:
            self._sink.arguments("{}")
        self._sink.cut = not (whole or self._given)
        return True

    def _member(self, key: str) -> Waiting:
        if key == "name" and not self._begun:
            name = yield from read_string(self._source)
            if name is None or name not in self._names:
                return False
            self._begun = True
            self._sink.begin(name)
            self._sink.arguments(self._early)
            return True
        if key not in ARGUMENTS or self._seen:
            return (yield from read_json(self._source, lambda _: None))
        self._seen = True
        parts: list[str] = []
        self._given = yield from read_arguments(self._source, self._sink.arguments if self._begun else parts.append)
        self._early = "".join(parts)
        return self._given
