"""Where a prompt can be picked up again: token positions up to which the conversation's later prompts are the same.

A later prompt continues the conversation, or edits or repeats one of its messages. Templates write history otherwise
than the newest turn (thinking is dropped, an empty thought is not written), so the next turn is rendered as well, and
what will change lies behind the last boundary.
"""

from collections.abc import Sequence
from typing import Any

from forgelm.text.conversation import Conversation
from forgelm.text.encode import Encoded
from forgelm.text.marks import Marks
from forgelm.text.truncate import Messages

_ANYTHING = "0"
"""Stands for what is said next; nothing that a template would take for markup or cut off."""


def next_turns(conversation: Conversation) -> list[Messages]:
    """The conversation once it has been answered and has gone on: with any words, and with a call where there may be.

    After a call and its result the chat goes on in the same turn, whose thinking templates keep.
    """
    messages = list(conversation.messages)
    answer: dict[str, Any] = {"role": "assistant", "content": _ANYTHING}
    if conversation.continued:
        last = messages.pop()
        answer = {**last, "content": last["content"] + _ANYTHING}
    turns = [[*messages, answer, {"role": "user", "content": _ANYTHING}]]
    if conversation.tools or any(message["role"] == "tool" for message in messages):
        function = {"name": _ANYTHING, "arguments": {}}
        calling = {**answer, "tool_calls": [{"id": _ANYTHING, "type": "function", "function": function}]}
        result = {"role": "tool", "content": _ANYTHING, "tool_call_id": _ANYTHING}
        turns.append([*messages, calling, result])
    return turns


def find_boundaries(prompt: Encoded, laters: Sequence[str], marks: Marks, most: int) -> tuple[int, ...]:
    """Ascending token positions of `prompt`: the beginnings of messages, and of what each of `laters` changes.

    `laters` are the next turn as it may be. All positions are at least 1 and less than the prompt's length: they lie
    before marks, where tokens don't depend on what follows. At most `most`, the first ones and the last ones.
    """
    changes = [common_length(prompt.text, later) for later in laters]
    cuts = [
        (span.end, position, span.token)
        for span, position in zip(prompt.spans, prompt.positions, strict=True)
        if position
    ]
    last = {max((at for end, at, _ in cuts if end <= shared), default=0) for shared in changes} - {0}
    found = sorted(last | {at for _, at, token in cuts if token in marks.opening and at < max(last, default=0)})
    if len(found) > most:
        found = found[: most // 2] + found[len(found) - (most - most // 2) :]
    return tuple(found)


def common_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        # Compares only what isn't known to agree, so the whole is linear.
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
