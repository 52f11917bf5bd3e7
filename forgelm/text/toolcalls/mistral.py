"""Calls as Mistral's models write them: an array after a mark (to 2024), or a mark for each part of each call (since).

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}

The parser reads both, whatever the template; a grammar lets the template's own through.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any

from forgelm.text.output import CallParser, CallSink
from forgelm.text.toolcalls.calls import read_arguments, read_calls
from forgelm.text.toolcalls.lark import Writer, alternatives, arguments, literal, repeated
from forgelm.text.toolcalls.source import Source, Waiting
from forgelm.text.toolcalls.tools import Tool, ToolUse

OPEN = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class MistralParser:
    """Reads what follows the mark."""

    openers: tuple[str, ...] = (OPEN,)
    starters: tuple[str, ...] = ()

    def __init__(self, names: Collection[str]) -> None:
        # The longest first: one name may be another's beginning.
        self._names = sorted(names, key=len, reverse=True)

    def read(self, source: Source, sink: CallSink) -> Waiting:
        yield from source.takes(OPEN)
        yield from source.space()
        if (yield from source.starts("[", "{")) is not None:
            return (yield from read_calls(source, sink, self._names))
        name = yield from self._name(source)
        if name is None:
            return False
        sink.begin(name)
        sink.cut = not (yield from read_arguments(source, sink.arguments))
        return True

    def _name(self, source: Source) -> Generator[None, None, str | None]:
        """A tool's name, up to and with the mark of its arguments."""
        for name in self._names:
            for mark in (ARGS, CALL_ID):
                if (yield from source.takes(name + mark)):
                    if mark == CALL_ID:
                        identifier = yield from source.ahead(9)
                        source.at += len(identifier)
                        if not (yield from source.takes(ARGS)):
                            return None
                    yield from source.space()
                    return name
        return None


class Mistral:
    """The format, as one template has it."""

    name = "mistral"
    opening = OPEN
    anywhere = True
    native = True

    def __init__(self, template_source: str = "") -> None:
        """`template_source` tells which of the two it is; without one, the newer."""
        self._array = bool(template_source) and ARGS not in template_source
        self._ids = CALL_ID in template_source
        self.marks: tuple[str, ...] = (OPEN,) if self._array else (OPEN, ARGS, CALL_ID)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return MistralParser([tool.name for tool in tools])

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        return list(messages)

    def rest(self, writer: Writer, use: ToolUse) -> str:
        if self._array:
            call = alternatives(writer, use, "call", _write_object)
            calls = repeated(call, f'", " {call}', use)
            return f'" "? "[" {calls} "]"'
        call = alternatives(writer, use, "call", lambda tool, param: self._write(writer, tool, param))
        return repeated(call, f"{writer.mark(OPEN)} {call}", use)

    def _write(self, writer: Writer, tool: Tool, param: str) -> str:
        ids = f"({writer.mark(CALL_ID)} /[A-Za-z0-9]{{9}}/)? " if self._ids else ""
        return f"{literal(tool.name)} {ids}{writer.mark(ARGS)} {arguments(tool, param)}"


def _write_object(tool: Tool, param: str) -> str:
    head = f'{{"name": "{tool.name}", "arguments": '
    before, after = literal(', "id": "'), literal('"')
    identifier = f"({before} /[A-Za-z0-9]{{9}}/ {after})?"
    return f"{literal(head)} {arguments(tool, param)} {identifier} {literal('}')}"
