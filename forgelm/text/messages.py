"""Chat messages as clients send them, made into the plain form that chat templates take.

`normalise` knows the protocol: text parts are joined, `developer` is `system`, leading system messages are
one, and what we can't honour is refused by name. `fit` knows templates: what the one at hand would refuse is
turned into the nearest thing that it takes. Neither knows HTTP or Jinja.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from forgelm.errors import InvalidRequest, UnsupportedParameter

BETWEEN_MESSAGES = "\n\n"
"""Put between the texts of messages that become one."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""A client's role → the template's."""


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content. Only `text` is served."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a request. Fields we don't know are ignored; those of tool calls are known to be
    refused."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None


class Abilities(msgspec.Struct, frozen=True):
    """Which conversations a template renders with nothing lost."""

    system: bool = True
    """A system message first."""
    late_system: bool = True
    """A system message further on."""
    repeats: bool = True
    """Two messages of one role in a row."""


def normalise(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages with the keys `role` (system, user or assistant), `content` (a string) and, if sent, `name`.

    Raises `InvalidRequest` naming the message and field: no messages, an unknown role, content that is
    missing or isn't text; and `UnsupportedParameter` for tool calls and their results.
    """
    if not messages:
        raise InvalidRequest("messages is empty: at least one message is needed.", param="messages")
    plain: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = _role(message, f"messages[{index}]")
        text = _text(message, f"messages[{index}].content")
        if role == "system" and len(plain) == 1 and plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": plain[0]["content"] + BETWEEN_MESSAGES + text}
        else:
            plain.append(_plain(role, text, message.name))
    return plain


def fit(messages: Sequence[dict[str, Any]], abilities: Abilities) -> list[dict[str, Any]]:
    """`messages` as a template of these `abilities` takes them; content and order are kept.

    A system message that the template would refuse becomes a user message where it stands: moving it to the
    front would change the whole prompt's beginning, and so cost every cached token, each time one is added. A
    message of the same role as the one before, where that is refused, is appended to it.
    """
    fitted: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "system" and not (abilities.late_system if fitted else abilities.system):
            role = "user"
        if fitted and role == fitted[-1]["role"] and not abilities.repeats:
            joined = fitted[-1]["content"] + BETWEEN_MESSAGES + message["content"]
            fitted[-1] = {**fitted[-1], "content": joined}
        else:
            fitted.append(message if role == message["role"] else {**message, "role": role})
    return fitted


def _plain(role: str, text: str, name: str | None) -> dict[str, Any]:
    if name is None:
        return {"role": role, "content": text}
    return {"role": role, "content": text, "name": name}


def _role(message: ChatMessage, at: str) -> str:
    if message.role in ("tool", "function"):
        raise UnsupportedParameter(
            f"{at}.role is {message.role!r}: results of tool calls aren't supported yet.", param=f"{at}.role"
        )
    for field in ("tool_calls", "tool_call_id", "function_call"):
        if getattr(message, field):
            raise UnsupportedParameter(f"{at}.{field}: tool calls aren't supported yet.", param=f"{at}.{field}")
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{at}.role is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}.", param=f"{at}.role"
        )
    return ROLES[message.role]


def _text(message: ChatMessage, at: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        # Clients send back our own answers, and an answer may have had no text.
        if message.role == "assistant":
            return ""
        raise InvalidRequest(f"{at} is missing.", param=at)
    return "".join([_part_text(part, f"{at}[{index}]", at) for index, part in enumerate(content)])


def _part_text(part: Part, where: str, at: str) -> str:
    if part.type != "text":
        raise InvalidRequest(f"{where} is of type {part.type[:40]!r}: this server takes text parts only.", param=at)
    if part.text is None:
        raise InvalidRequest(f"{where} is a text part without `text`.", param=at)
    return part.text
