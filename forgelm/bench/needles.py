"""Needles: sentences hidden in a text at known depths, and the questions that ask for them at its end.

They are spliced in as token ids, and a question is the sentence's own beginning: what is asked is whether attention
still finds the place, not whether the model follows instructions.
"""

import random
from collections.abc import Sequence

import msgspec

from forgelm.bench.prose import Tokenize
from forgelm.errors import ConfigError

DEPTHS = (10, 30, 50, 70, 90)
"""Percent of the text before each needle."""
THINGS = ("red box", "old bridge", "tall tower", "green door", "small boat")


class Needle(msgspec.Struct, frozen=True, array_like=True):
    """One sentence. `ask` and `answer` together are what the text holds."""

    depth: int
    """Percent of the text before it."""
    ask: tuple[int, ...]
    answer: tuple[int, ...]


class Haystack(msgspec.Struct, frozen=True):
    """A text with its needles, and the room that asking for all of them takes."""

    body: tuple[int, ...]
    needles: tuple[Needle, ...]


def make_needles(tokenize: Tokenize) -> tuple[Needle, ...]:
    """One per depth; the same ones every time."""
    digits = random.Random(0)
    return tuple(
        Needle(
            depth,
            tokenize(f"\n\nThe code of the {thing} is", start=False),
            tokenize(f" {digits.randrange(100_000, 1_000_000)}.", start=False),
        )
        for depth, thing in zip(DEPTHS, THINGS, strict=True)
    )


def room(needles: Sequence[Needle]) -> int:
    """Tokens that all questions with their answers take."""
    return sum(len(needle.ask) + len(needle.answer) for needle in needles)


def hide(prose: tuple[int, ...], needles: tuple[Needle, ...], tokens: int) -> Haystack:
    """As much of `prose` as leaves room for needles and questions within `tokens`.

    `prose` must have that many ids. Raises `ConfigError` when nothing would be left of it.
    """
    left = tokens - 2 * room(needles)
    if left < len(needles):
        raise ConfigError(f"{tokens} tokens are too few: the needles and their questions alone take {tokens - left}")
    body: list[int] = []
    begin = 0
    for needle in needles:
        end = left * needle.depth // 100
        body += (*prose[begin:end], *needle.ask, *needle.answer)
        begin = end
    return Haystack((*body, *prose[begin:left]), needles)
