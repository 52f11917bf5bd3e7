"""The choices of a stream, each put together as a client does it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Joined:
    """Everything that a stream said for one choice."""

    content: str = ""
    """Or the text of a text completion."""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    """`id`, `name` and `arguments` of each."""
    finish: str | None = None
    roles: list[str] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    """Log-probabilities as chats have them."""
    lists: dict[str, list[Any]] = field(default_factory=dict)
    """The same as text completions have them."""
    order: list[str] = field(default_factory=list)
    """Kinds of pieces, each named once as long as it lasts."""

    def add(self, choice: dict[str, Any]) -> None:
        """Take one chunk's choice in. Fails on anything after the finish reason."""
        assert self.finish is None, f"after the end: {choice}"
        delta = choice.get("delta", {"content": choice.get("text")})
        if delta.get("role"):
            self.roles.append(delta["role"])
        self._text("content", delta.get("content"))
        self._text("reasoning", delta.get("reasoning_content"))
        for call in delta.get("tool_calls", ()):
            self._call(call)
        self.finish = choice["finish_reason"]
        self._logprobs(choice["logprobs"])

    def _text(self, kind: str, text: str | None) -> None:
        if text:
            self._note(kind)
            setattr(self, kind, getattr(self, kind) + text)

    def _call(self, call: dict[str, Any]) -> None:
        function = call["function"]
        if "id" in call:
            assert call["type"] == "function"
            assert call["index"] == len(self.calls)
            self.calls.append({"id": call["id"], "name": function["name"], "arguments": ""})
        else:
            assert function.keys() == {"arguments"}
        self.calls[call["index"]]["arguments"] += function["arguments"]
        self._note("calls")

    def _logprobs(self, found: dict[str, Any] | None) -> None:
        if found is None:
            return
        if "content" in found:
            self.entries += found["content"]
        else:
            for name, values in found.items():
                self.lists.setdefault(name, []).extend(values)

    def _note(self, kind: str) -> None:
        if self.order[-1:] != [kind]:
            self.order.append(kind)


def joined(events: Iterable[dict[str, Any]], count: int = 1) -> list[Joined]:
    """The choices 0 … `count` − 1 of a stream's events; others fail."""
    choices = [Joined() for _ in range(count)]
    for event in events:
        for choice in event["choices"]:
            choices[choice["index"]].add(choice)
    return choices
