"""Calls as Hermes and Qwen 2.5 and 3 write them, JSON between marks; SmolLM2 puts several into an array there.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from collections.abc import Collection, Sequence
from typing import Any

from forgelm.text.output import CallParser, CallSink
from forgelm.text.toolcalls.calls import read_calls
from forgelm.text.toolcalls.lark import Writer, alternatives, arguments, literal, repeated
from forgelm.text.toolcalls.source import Source, Waiting
from forgelm.text.toolcalls.tools import Tool, ToolUse

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser:
    """Reads what stands between the marks."""

    openers: tuple[str, ...] = (OPEN,)
    starters: tuple[str, ...] = ()

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def read(self, source: Source, sink: CallSink) -> Waiting:
        yield from source.takes(OPEN)
        yield from source.space()
        if not (yield from read_calls(source, sink, self._names)):
            return False
        if not sink.cut:
            yield from source.space()
            yield from source.closes(CLOSE)
        return True


class Hermes:
    """The format, for templates that know it."""

    name = "hermes"
    opening = OPEN
    anywhere = True
    native = True
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return HermesParser([tool.name for tool in tools])

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        return list(messages)

    def rest(self, writer: Writer, use: ToolUse) -> str:
        call = alternatives(writer, use, "call", _write)
        block = writer.rule("block", f'"\\n" {call} "\\n" {writer.mark(CLOSE)}')
        return repeated(block, f'"\\n" {writer.mark(OPEN)} {block}', use)


def _write(tool: Tool, param: str) -> str:
    head = f'{{"name": "{tool.name}", "arguments": '
    return f"{literal(head)} {arguments(tool, param)} {literal('}')}"
