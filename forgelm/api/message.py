"""Events of an answer as OpenAI's chat message: whole, or as a delta of one."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from forgelm.api.wire import Function, Text, ToolCall
from forgelm.text.output import CallArguments, CallBegin, Content, Event, Reasoning


def delta_of(event: Event) -> Text:
    """One event of a stream."""
    match event:
        case Content(text):
            return Text(content=text)
        case Reasoning(text):
            return Text(reasoning_content=text)
        case CallBegin(index, call, name):
            return Text(tool_calls=[ToolCall(Function("", name), call, "function", index)])
        case CallArguments(index, text):
            return Text(tool_calls=[ToolCall(Function(text), index=index)])


class Message(msgspec.Struct):
    """What one choice said, joined."""

    content: str
    reasoning: str
    calls: list[ToolCall]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Message":
        content, reasoning, calls = [], [], list[ToolCall]()
        arguments: dict[int, list[str]] = {}
        for event in events:
            match event:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case CallBegin(index, call, name):
                    calls.append(ToolCall(Function("", name), call, "function"))
                    arguments[index] = []
                case CallArguments(index, text):
                    arguments[index].append(text)
        for index, pieces in arguments.items():
            calls[index].function.arguments = "".join(pieces)
        return cls("".join(content), "".join(reasoning), calls)

    def wire(self, *, thinks: bool) -> Text:
        """The message of a whole answer. `thinks`: its model can, so that the field is there though it is empty."""
        return Text(
            # A call without words has no text: clients that go by OpenAI's schema expect null.
            content=self.content if self.content or not self.calls else None,
            role="assistant",
            reasoning_content=self.reasoning if self.reasoning or thinks else UNSET,
            tool_calls=self.calls or UNSET,
        )
