"""Shortening what is too long for the context, when a client asks for it: whole turns of a chat, or tokens of a text.

"head" drops the oldest, "middle" what comes after the beginning. A turn is what the user says, with the answers to it,
calls and their results among them: turns go as a whole, so that roles still alternate. The leading system message and
the last turn always stay. Knows nothing of templates or tokenizers; callers measure.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, Literal, TypeVar

Policy = Literal["middle", "head"]
Messages = list[dict[str, Any]]
Measured = TypeVar("Measured")


def shorten(
    messages: Messages,
    whole: Measured,
    policy: Policy,
    measure: Callable[[Messages], Measured],
    fits: Callable[[Measured], bool],
) -> tuple[Messages, Measured]:
    """The most of `messages` that fits, and what `measure` gives for that; the least there can be if nothing does.

    `whole` is what it gives for all of them. Measures once more, and once for each halving of the number of turns.
    """
    start, turns = split_turns(messages)
    first = 1 if policy == "middle" else 0
    droppable = len(turns) - 1 - first
    if fits(whole) or droppable <= 0:
        return messages, whole

    def without(count: int) -> tuple[Messages, Measured]:
        kept = [*start, *chain(*turns[:first], *turns[first + count :])]
        return kept, measure(kept)

    best = without(droppable)
    if not fits(best[1]):
        return best
    low, high = 1, droppable
    while low < high:
        middle = (low + high) // 2
        tried = without(middle)
        if fits(tried[1]):
            best, high = tried, middle
        else:
            low = middle + 1
    return best


def split_turns(messages: Messages) -> tuple[Messages, list[Messages]]:
    """A leading system message, and the turns: each begins where somebody speaks after an assistant."""
    start = messages[:1] if messages and messages[0]["role"] == "system" else []
    turns: list[Messages] = []
    answered = False
    for message in messages[len(start) :]:
        # What tools say belongs to the answer.
        is_answer = message["role"] in ("assistant", "tool")
        if not turns or (answered and not is_answer):
            turns.append([])
        turns[-1].append(message)
        answered = is_answer
    return start, turns


def shorten_tokens(tokens: bytes, policy: Policy, most: int, *, keep: int) -> bytes:
    """`most` of little-endian int32 `tokens`, without the oldest, or without the middle; the first `keep` stay."""
    if len(tokens) <= 4 * most:
        return tokens
    first = min(keep if policy == "head" else max(keep, (most + 1) // 2), most)
    last = most - first
    return tokens[: 4 * first] + (tokens[-4 * last :] if last else b"")
