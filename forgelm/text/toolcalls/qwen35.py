"""Calls as Qwen 3.5 (and Qwen3-Coder) write them: strings as they are, everything else as JSON.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from collections.abc import Generator, Sequence
from typing import Any

from forgelm.text.output import CallParser, CallSink
from forgelm.text.toolcalls.lark import Writer, alternatives, repeated
from forgelm.text.toolcalls.qwen35_grammar import write_function
from forgelm.text.toolcalls.qwen35_values import Arguments
from forgelm.text.toolcalls.source import Source, Waiting
from forgelm.text.toolcalls.tools import Tool, ToolUse

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
END = "</function>"
PARAMETER = "<parameter="


class Qwen35Parser:
    """Reads one call. A missing `</function>` or `</tool_call>` is no matter; what else is missing breaks it off."""

    openers: tuple[str, ...] = (OPEN,)
    starters: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {f"<function={tool.name}>": tool for tool in tools}

    def read(self, source: Source, sink: CallSink) -> Waiting:
        yield from source.takes(OPEN)
        yield from source.space()
        head = yield from source.starts(*self._tools)
        if head is None:
            return False
        source.at += len(head)
        tool = self._tools[head]
        sink.begin(tool.name)
        arguments = Arguments(tool.parameters, source, sink.arguments)
        sink.cut = not (yield from self._parameters(source, arguments))
        arguments.end()
        if not sink.cut:
            yield from source.space()
            yield from source.closes(CLOSE)
        return True

    def _parameters(self, source: Source, arguments: Arguments) -> Waiting:
        """Read to the function's end. False where it doesn't come."""
        while True:
            yield from source.space()
            if (yield from source.takes(END)):
                return True
            if not (yield from source.takes(PARAMETER)):
                return (yield from source.starts(CLOSE)) is not None
            key = yield from _key(source)
            if key is None or not (yield from arguments.read(key)):
                return False


def _key(source: Source) -> Generator[None, None, str | None]:
    """A parameter's name and the bracket behind it; None if no name is there."""
    parts: list[str] = []
    if (yield from source.until((">", "\n"), parts.append)) != ">":
        return None
    source.at += 1
    return "".join(parts)


class Qwen35:
    """The format."""

    name = "qwen35"
    opening = OPEN
    anywhere = True
    native = True
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return Qwen35Parser(tools)

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """The template would write `True` and `None` as Python does: as JSON they are what the model generated."""
        return [_as_json(message) for message in messages]

    def rest(self, writer: Writer, use: ToolUse) -> str:
        function = alternatives(writer, use, "function", lambda tool, param: write_function(writer, tool, param))
        block = writer.rule("block", f'"\\n" {function} {writer.mark(CLOSE)}')
        return repeated(block, f'"\\n" {writer.mark(OPEN)} {block}', use)


def _as_json(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{**call, "function": _spelled(call["function"])} for call in calls]}


def _spelled(function: dict[str, Any]) -> dict[str, Any]:
    words = {True: "true", False: "false", None: "null"}
    given = function.get("arguments") or {}
    spelled = {key: words[value] if value is None or isinstance(value, bool) else value for key, value in given.items()}
    return {**function, "arguments": spelled}
