"""Chat messages as clients send them, made into the plain form that chat templates take.

`normalise` knows the protocol: text parts are joined, `developer` is `system`, leading system messages are one, calls'
arguments are objects, and what we can't honour is refused by name. `fit` knows templates: what the one at hand would
refuse is turned into the nearest thing that it takes. Neither knows HTTP or Jinja.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.text.fitting import BETWEEN_MESSAGES, Abilities, fit

__all__ = ["BETWEEN_MESSAGES", "ROLES", "Abilities", "ChatMessage", "Part", "fit", "normalise"]

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""A client's role → the template's."""


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content. Only `text` is served."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """Which function was called, and with what."""

    name: str | None = None
    arguments: Any = None
    """JSON text of an object, as OpenAI has it, or the object itself."""


class ToolCall(msgspec.Struct, frozen=True):
    """One call of an assistant's message."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a request. Fields we don't know are ignored."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    """OpenAI's form before there were several calls, and before they had ids."""
    reasoning_content: str | None = None
    reasoning: Any = None
    """vLLM's newer name of it; some clients put other things here, which are ignored."""


def normalise(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages with the keys `role` (system, user, assistant or tool) and `content` (a string), and where there is any:

    `name`; of an assistant `reasoning_content` and `tool_calls`, each {id, type, function: {name, arguments}} with
    arguments as a mapping; of a tool `tool_call_id`, which needn't be that of a call: clients cut histories.

    Raises `InvalidRequest` naming the message and field: no messages, an unknown role, content that is missing or
    isn't text, calls that aren't the assistant's, arguments that are no JSON object; and `UnsupportedParameter` for
    calls of other things than functions.
    """
    if not messages:
        raise InvalidRequest("messages is empty: at least one message is needed.", param="messages")
    plain: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        made = _plain(message, f"messages[{index}]")
        if made["role"] == "system" and len(plain) == 1 and plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": plain[0]["content"] + BETWEEN_MESSAGES + made["content"]}
        else:
            plain.append(made)
    return plain


def _plain(message: ChatMessage, at: str) -> dict[str, Any]:
    role = _role(message, at)
    made: dict[str, Any] = {"role": role, "content": _text(message, role, f"{at}.content")}
    if message.name is not None:
        made["name"] = message.name
    if role == "tool":
        given = message.tool_call_id
        if given is None and message.name is not None:
            given = _legacy_id(message.name)
        if given is not None:
            made["tool_call_id"] = given
    if role == "assistant":
        reasoning = message.reasoning_content or message.reasoning
        if reasoning and isinstance(reasoning, str):
            made["reasoning_content"] = reasoning
        calls = _calls(message, at)
        if calls:
            made["tool_calls"] = calls
    return made


def _role(message: ChatMessage, at: str) -> str:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{at}.role is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}.", param=f"{at}.role"
        )
    role = ROLES[message.role]
    owners = {"tool_calls": "assistant", "function_call": "assistant", "tool_call_id": "tool"}
    for field, owner in owners.items():
        if role != owner and getattr(message, field):
            raise InvalidRequest(
                f"{at}.{field}: only a message of role {owner!r} has it, not {message.role!r}.", param=f"{at}.{field}"
            )
    return role


def _text(message: ChatMessage, role: str, at: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        # Clients send back our own answers, and an answer may have had no text; nor has every tool something to say.
        if role in ("assistant", "tool"):
            return ""
        raise InvalidRequest(f"{at} is missing.", param=at)
    return "".join([_part_text(part, f"{at}[{index}]") for index, part in enumerate(content)])


def _part_text(part: Part, at: str) -> str:
    if part.type != "text":
        raise InvalidRequest(f"{at} is of type {part.type[:40]!r}: this server takes text parts only.", param=at)
    if part.text is None:
        raise InvalidRequest(f"{at} is a text part without `text`.", param=at)
    return part.text


# --- calls -------------------------------------------------------------------------------------------------------


def _calls(message: ChatMessage, at: str) -> list[dict[str, Any]]:
    if message.tool_calls:
        return [_call(call, f"{at}.tool_calls[{index}]", index) for index, call in enumerate(message.tool_calls)]
    if message.function_call is None:
        return []
    function = _function(message.function_call, f"{at}.function_call")
    return [{"id": _legacy_id(function["name"]), "type": "function", "function": function}]


def _call(call: ToolCall, at: str, index: int) -> dict[str, Any]:
    if call.type not in (None, "function"):
        raise UnsupportedParameter(f"{at}.type is {call.type[:40]!r}: only functions are called.", param=f"{at}.type")
    if call.function is None:
        raise InvalidRequest(f"{at}.function is missing.", param=f"{at}.function")
    function = _function(call.function, f"{at}.function")
    return {"id": call.id or f"call_{index}", "type": "function", "function": function}


def _function(call: FunctionCall, at: str) -> dict[str, Any]:
    if not call.name:
        raise InvalidRequest(f"{at}.name is missing.", param=f"{at}.name")
    return {"name": call.name, "arguments": _arguments(call.arguments, f"{at}.arguments")}


def _arguments(given: Any, at: str) -> dict[str, Any]:
    """`given` as a mapping: templates write its items one by one."""
    read = given
    if isinstance(given, str):
        try:
            read = msgspec.json.decode(given) if given.strip() else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise InvalidRequest(f"{at} is not JSON: {error}", param=at) from None
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise InvalidRequest(f"{at} must be a JSON object.", param=at)
    return read


def _legacy_id(name: str) -> str:
    """The id of a call that has none: of the call and of its result alike."""
    return f"call_{name}"
