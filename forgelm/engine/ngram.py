"""What followed the last few tokens the last time they came, in one sequence's own tokens.

Prompt lookup decoding (Saxena 2023): answers repeat their prompts and themselves, and a suffix that has come before is
likely to go on as it did then. Dictionaries from short runs of tokens to where they ended last make that one look-up
however long the sequence is. It knows nothing of models, of costs, or of whether a guess is worth its row.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Tokens

SIZES = (6, 3)
"""Lengths of the runs that are looked up, longest first: its latest place is the likeliest to go on in the same way.
The shorter one finds a copy again a few tokens after an edit."""
MATCH = 16
"""Matched tokens are counted up to so many: more say nothing new."""
_FACTOR = 0x9E3779B97F4A7C15
_BITS = (1 << 64) - 1
_FEW = 32
"""Up to so many new tokens a plain loop is quicker than NumPy."""


class Found(NamedTuple):
    """A guess at what comes next."""

    tokens: Tokens
    """Shape (k,), k ≤ what was asked for; a view where that is possible."""
    match: int
    """How many tokens before it are the same as before the place it was taken from, up to `MATCH`; 0: nothing found."""


NOTHING = Found(np.empty(0, np.int32), 0)


class NGrams:
    """The runs of one sequence, which grows and never shrinks. About 100 bytes per token and size."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        """`sizes`: lengths of the runs, descending, each at least 1 and at most `MATCH`."""
        self._ends: tuple[tuple[int, dict[int, int]], ...] = tuple((size, {}) for size in sizes)
        """For each size: hash of a run → the position after its last occurrence."""
        self._known = 0
        """Runs that end at or before this position are taken in."""

    def extend(self, tokens: Tokens, length: int) -> None:
        """Take in the first `length` of `tokens`, shape (≥ length,). Only what is new costs anything.

        The run that ends at `length` is left for the next call, so that a suffix never finds itself.
        """
        first, self._known = self._known, max(self._known, length - 1)
        if self._known - first > _FEW:
            self._take_many(tokens, first)
        else:
            self._take_few(tokens, first)

    def _take_many(self, tokens: Tokens, first: int) -> None:
        for size, ends in self._ends:
            begin = max(0, first + 1 - size)
            values = tokens[begin : self._known].astype(np.uint64)
            count = len(values) - size + 1
            if count > 0:
                keys = np.zeros(count, np.uint64)
                for place in range(size):
                    keys = keys * np.uint64(_FACTOR) + values[place : place + count]
                ends.update(zip(_mixed(keys).tolist(), range(begin + size, self._known + 1), strict=True))

    def _take_few(self, tokens: Tokens, first: int) -> None:
        for size, ends in self._ends:
            begin = max(0, first + 1 - size)
            values = tokens[begin : self._known].tolist()
            for place in range(len(values) - size + 1):
                ends[_key(values[place : place + size])] = begin + place + size

    def find(self, tokens: Tokens, length: int, most: int) -> Found:
        """Up to `most` tokens that may follow the first `length` of `tokens`; those were taken in by `extend` before.

        A place so near that what followed it runs into the end goes on from there: the text is taken to be periodic.
        """
        if most < 1:
            return NOTHING
        suffix = tokens[max(0, length - MATCH) : length].tolist()
        for size, ends in self._ends:
            if len(suffix) < size:
                continue
            end = ends.get(_key(suffix[-size:]), length)
            if end >= length:
                continue
            match = _common(suffix, tokens[max(0, end - MATCH) : end].tolist())
            # Two runs may have one hash.
            if match >= size:
                return Found(_continuation(tokens, end, length, most), match)
        return NOTHING


def _key(run: list[int]) -> int:
    key = 0
    for token in run:
        key = (key * _FACTOR + token) & _BITS
    return key ^ (key >> 32)


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The same for many, shape (n,): a dictionary looks at the low bits first."""
    return keys ^ (keys >> np.uint64(32))


def _common(left: list[int], right: list[int]) -> int:
    """Length of the longest common suffix."""
    count = 0
    for one, other in zip(reversed(left), reversed(right), strict=False):
        if one != other:
            break
        count += 1
    return count


def _continuation(tokens: Tokens, end: int, length: int, most: int) -> Tokens:
    followed = tokens[end : min(end + most, length)]
    return followed if len(followed) == most else np.resize(followed, most)
