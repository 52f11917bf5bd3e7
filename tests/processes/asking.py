"""Chat requests to a served model, whole and streamed, as one shape: what its choices said.

Each stream is read strictly: its deltas must join to what a whole answer could be.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.processes.serving import Served

CHAT = "/v1/chat/completions"
ZONE: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
"""The arguments of a tool that tells the time."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}


@dataclass
class Call:
    """One tool call."""

    name: str
    id: str
    text: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Its arguments, which must be an object."""
        read = json.loads(self.text)
        assert isinstance(read, dict)
        return read


@dataclass
class Choice:
    """What one choice said."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def said(self) -> tuple[Any, ...]:
        """All of it but ids, which are drawn anew for each answer."""
        called = [(call.name, call.text) for call in self.calls]
        return self.content, self.reasoning, called, self.finish, [entry["bytes"] for entry in self.logprobs]


def ask(server: Served, content: Any = "Say hello.", **fields: Any) -> dict[str, Any]:
    """A whole answer's body. `content` is text, or messages."""
    answer = server.http.post(f"{server.base}{CHAT}", json=_body(content, fields))
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    return body


def whole(server: Served, content: Any = "Say hello.", **fields: Any) -> list[Choice]:
    """The choices of a whole answer."""
    choices = ask(server, content, **fields)["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [_choice(choice) for choice in choices]


def one(server: Served, content: Any = "Say hello.", **fields: Any) -> Choice:
    """The one choice of an answer that was asked for twice, whole and streamed, and was the same."""
    (plain,) = whole(server, content, **fields)
    (stream,) = streamed(server, content, **fields)
    assert stream.said == plain.said
    return plain


def both(server: Served, content: Any = "Say hello.", **fields: Any) -> list[Choice]:
    """The choices of an answer, whole and streamed. The two needn't be the same: what is drawn hangs by a hair."""
    return [*whole(server, content, **fields), *streamed(server, content, **fields)]


def streamed(server: Served, content: Any = "Say hello.", **fields: Any) -> list[Choice]:
    """The choices of a streamed answer."""
    choices: dict[int, Choice] = {}
    for event in events(server, content, **fields):
        for choice in event.get("choices", []):
            _add(choices.setdefault(choice["index"], Choice()), choice)
    assert sorted(choices) == list(range(len(choices)))
    return [choices[index] for index in sorted(choices)]


def events(server: Served, content: Any = "Say hello.", **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, its `[DONE]` checked and left out."""
    with server.stream("", **_body(content, fields)) as stream:
        found = list(stream)
    assert found.pop() == {"done": True}
    assert not any("error" in event for event in found), found[-1]
    return found


def refused(server: Served, content: Any = "Say hello.", **fields: Any) -> str:
    """The field that a 400 names, the same for a stream."""
    named = set()
    for stream in (False, True):
        answer = server.http.post(f"{server.base}{CHAT}", json={**_body(content, fields), "stream": stream})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        named.add(error["param"])
    (param,) = named
    return str(param)


def lives(server: Served) -> None:
    """A plain request is answered: nothing that came before has broken the server."""
    assert ask(server, max_tokens=1)["usage"]["completion_tokens"] == 1


def _body(content: Any, fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return {**GREEDY, "messages": messages, **fields}


def _choice(choice: dict[str, Any]) -> Choice:
    message = choice["message"]
    assert message["role"] == "assistant"
    calls = [Call(call["function"]["name"], call["id"], call["function"]["arguments"]) for call in _calls(message)]
    assert message["content"] is not None or calls
    logprobs = (choice["logprobs"] or {}).get("content", [])
    return Choice(
        message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"], logprobs
    )


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = message.get("tool_calls", [])
    assert all(call["type"] == "function" for call in calls)
    return calls


def _add(choice: Choice, piece: dict[str, Any]) -> None:
    """Take in one event of a choice."""
    assert not choice.finish, "something came after the finish reason"
    delta = piece["delta"]
    choice.content += delta.get("content") or ""
    choice.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls", []):
        if "id" in call:
            assert call["index"] == len(choice.calls)
            choice.calls.append(Call(call["function"]["name"], call["id"]))
        choice.calls[call["index"]].text += call["function"]["arguments"]
    choice.logprobs += (piece.get("logprobs") or {}).get("content", [])
    choice.finish = piece["finish_reason"] or ""
