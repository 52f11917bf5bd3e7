"""Messages fitted to what a chat template takes: what it would refuse or drop becomes the nearest thing that it shows.

Knows the plain form of messages (`normalise`) and what was found out about a template (`Abilities`), not how.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

BETWEEN_MESSAGES = "\n\n"
"""Put between the texts of messages that become one."""
SHORT_ID = 9
"""Letters and digits of an id where a template wants so many, as Mistral's do."""

Message = dict[str, Any]


class Abilities(msgspec.Struct, frozen=True):
    """Which conversations a template renders with nothing lost."""

    system: bool = True
    """A system message first."""
    late_system: bool = True
    """A system message further on."""
    repeats: bool = True
    """Two messages of one role in a row."""
    tools: bool = False
    """Definitions of tools."""
    calls: bool = False
    """An assistant's calls."""
    results: bool = False
    """Messages of tools."""
    thinks: bool = False
    """`enable_thinking` changes the prompt."""
    text_arguments: bool = False
    """It wants a call's arguments as JSON text."""
    short_ids: bool = False
    """It wants ids of calls of `SHORT_ID` letters and digits."""
    silent_calls: bool = False
    """It shows calls only of a message whose content is None."""
    single_calls: bool = False
    """It takes one call in a message."""


def fit(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """`messages` as a template of these `abilities` takes them; content and order are kept.

    A system message that the template would refuse becomes a user message where it stands: moving it to the front
    would change the whole prompt's beginning, and so cost every cached token, each time one is added. Calls and
    results that it would leave out are written into the text, in the form that most models know. A message of the
    same role as the one before, where that is refused, is appended to it, calls and all.
    """
    fitted: list[Message] = []
    for message in messages:
        for shown in _shown(message, abilities, first=not fitted):
            if fitted and not abilities.repeats and _joins(fitted[-1], shown):
                fitted[-1] = _joined(fitted[-1], shown)
            else:
                fitted.append(shown)
    return fitted


def _shown(message: Message, abilities: Abilities, *, first: bool) -> list[Message]:
    role = message["role"]
    if role == "system" and not (abilities.system if first else abilities.late_system):
        return [{**message, "role": "user"}]
    if role == "assistant" and "tool_calls" in message:
        return _with_calls(message, abilities) if abilities.calls else [_with_written_calls(message)]
    if role == "tool" and not abilities.results:
        return [{"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}]
    if role == "tool" and abilities.short_ids and "tool_call_id" in message:
        return [{**message, "tool_call_id": short_id(message["tool_call_id"])}]
    return [message]


def _with_written_calls(message: Message) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>" for function in functions]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message["content"], *calls]))}


def _with_calls(message: Message, abilities: Abilities) -> list[Message]:
    calls = message["tool_calls"]
    if abilities.text_arguments:
        calls = [{**call, "function": _text_arguments(call["function"])} for call in calls]
    if abilities.short_ids:
        calls = [{**call, "id": short_id(call["id"])} for call in calls]
    first: Message = {**message, "tool_calls": calls}
    before: list[Message] = []
    if abilities.silent_calls:
        if message["content"]:
            before = [{key: value for key, value in message.items() if key != "tool_calls"}]
        first["content"] = None
    if not abilities.single_calls:
        return [*before, first]
    others: list[Message] = [
        {"role": "assistant", "content": None if abilities.silent_calls else "", "tool_calls": [call]}
        for call in calls[1:]
    ]
    return [*before, {**first, "tool_calls": calls[:1]}, *others]


def _text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def _joins(before: Message, message: Message) -> bool:
    # Each result answers one call.
    return bool(message["role"] == before["role"] != "tool")


def _joined(before: Message, message: Message) -> Message:
    texts = filter(None, (before["content"], message["content"]))
    joined = {**before, "content": BETWEEN_MESSAGES.join(texts)}
    calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
    if calls:
        joined["tool_calls"] = calls
    thoughts = [one["reasoning_content"] for one in (before, message) if "reasoning_content" in one]
    if thoughts:
        joined["reasoning_content"] = BETWEEN_MESSAGES.join(thoughts)
    return joined


def short_id(given: str) -> str:
    """An id of `SHORT_ID` letters and digits: the same for the same one, and its own if it is of that form."""
    if len(given) == SHORT_ID and given.isascii() and given.isalnum():
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:SHORT_ID]
