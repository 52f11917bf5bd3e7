"""Where a prompt can be picked up again: token positions up to which the conversation's later prompts are the same.

A later prompt continues the conversation, or edits or repeats one of its messages. Templates write history otherwise
than the newest turn (thinking is dropped, an empty thought is not written), so the next turn is rendered as well, and
what will change lies behind the last boundary.
"""

from collections.abc import Sequence
from typing import Any

from forgelm.text.encode import Encoded
from forgelm.text.marks import Marks

_ANYTHING = "0"
"""Stands for what is said next; nothing that a template would take for markup or cut off."""


def next_turn(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation once it has been answered and has gone on, with any words."""
    answer, question = ({"role": role, "content": _ANYTHING} for role in ("assistant", "user"))
    return [*messages, answer, question]


def find_boundaries(prompt: Encoded, later: str, marks: Marks, most: int) -> tuple[int, ...]:
    """Ascending token positions of `prompt`: the beginnings of messages, and of what `later`, its next turn, changes.

    All are at least 1 and less than the prompt's length: they lie before marks, where tokens don't depend on what
    follows. At most `most`, the first ones and the last ones: anybody can write marks into a message.
    """
    shared = common_length(prompt.text, later)
    kept = [
        (position, span.token)
        for span, position in zip(prompt.spans, prompt.positions, strict=True)
        if span.end <= shared and position
    ]
    found = [position for position, token in kept[:-1] if token in marks.opening]
    found += [position for position, _ in kept[-1:]]
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
