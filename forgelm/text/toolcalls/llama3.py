"""Calls as Llama 3.x writes them: the whole answer is one JSON object, perhaps after a special token.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}

Nothing marks a call but its form, so an object is one only where the answer begins and if it names a tool.
"""

from collections.abc import Collection, Sequence
from typing import Any

from forgelm.text.output import CallParser, CallSink
from forgelm.text.toolcalls.calls import read_call
from forgelm.text.toolcalls.lark import Writer, alternatives, arguments, literal
from forgelm.text.toolcalls.source import Source, Waiting
from forgelm.text.toolcalls.tools import Tool, ToolUse

TAG = "<|python_tag|>"


class Llama3Parser:
    """Reads an object, and others that follow it after semicolons."""

    openers: tuple[str, ...] = (TAG,)
    starters: tuple[str, ...] = ("{",)

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def read(self, source: Source, sink: CallSink) -> Waiting:
        if (yield from source.takes(TAG)):
            yield from source.space()
        if not (yield from read_call(source, sink, self._names)):
            return False
        if not sink.cut:
            source.hold()
            yield from source.space()
            if not (yield from source.takes(";")):
                source.back()
        return True


class Llama3:
    """The format."""

    name = "llama3"
    opening = '{"name": "'
    anywhere = False
    native = True
    marks: tuple[str, ...] = (TAG,)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return Llama3Parser([tool.name for tool in tools])

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        return list(messages)

    def rest(self, writer: Writer, use: ToolUse) -> str:
        # One call even where several are allowed: the templates couldn't render the history of more.
        return alternatives(writer, use, "call", _write)


def _write(tool: Tool, param: str) -> str:
    head = f'{tool.name}", "parameters": '
    return f"{literal(head)} {arguments(tool, param)} {literal('}')}"
