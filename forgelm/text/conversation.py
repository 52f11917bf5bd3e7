"""What a chat template renders: messages, tools and how the prompt shall end."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forgelm.text.truncate import Messages


class Conversation(msgspec.Struct, frozen=True):
    """One chat, checked, as `normalise` leaves it."""

    messages: Messages
    thinking: bool = False
    """`enable_thinking`."""
    tools: Sequence[dict[str, Any]] | None = None
    """OpenAI's definitions, as the client sent them: templates write them out, keys in order."""
    variables: Mapping[str, Any] = {}
    """Further ones for the template: a client's `chat_template_kwargs`."""
    prefill: bool = True
    """A last message of the assistant is gone on with instead of being answered."""
    add_generation_prompt: bool = True
    """The prompt ends where an answer begins. Of no effect on one that is gone on with."""
    merged: int = 0
    """Leading system messages of the client's that went into the first one: what its later ones are numbered by."""

    @property
    def continued(self) -> bool:
        """Whether the last message is gone on with."""
        last = self.messages[-1]
        return self.prefill and last["role"] == "assistant" and not last.get("tool_calls")
