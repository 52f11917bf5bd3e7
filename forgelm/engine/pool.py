"""The tokens a draw chooses among, with their logits: all of a row, or a few of it; and how the highest are found."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Tokens

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_BLOCK = 256
"""Entries per block of the exact top-k: the k highest lie in the blocks with the highest maxima."""


class Pool(NamedTuple):
    """Candidates for one draw."""

    ids: Ids | None
    """Ascending, shape (n,). None: every token of the vocabulary."""
    logits: Logits
    """Shape (n,)."""

    def token(self, at: int) -> int:
        return at if self.ids is None else int(self.ids[at])

    def places(self, tokens: Tokens | Ids) -> tuple[Ids | slice, Ids | Tokens]:
        """Which of `tokens` are in the pool (an index into them), and where each of those lies in it."""
        if self.ids is None:
            return slice(None), tokens
        if not len(self.ids):
            return slice(0), self.ids
        at = self.ids.searchsorted(tokens)
        at[at == len(self.ids)] = 0
        found = (self.ids[at] == tokens).nonzero()[0]
        return found, at[found]


def ranked(pool: Pool, k: int) -> Pool:
    """The `k` highest, highest first and then by id: not a Pool in itself, as its ids don't ascend."""
    ids, logits = pool
    if len(logits) > _BLOCK:
        places = top_k_ids(logits, k)
        ids, logits = places if ids is None else ids[places], logits[places]
    order = (-logits).argsort(kind="stable")[:k]
    return Pool(order if ids is None else ids[order], logits[order])


def best(pool: Pool) -> Pool:
    """The first of the highest alone; nothing of an empty pool."""
    if not len(pool.logits):
        return pool
    at = int(pool.logits.argmax())
    return Pool(np.array([pool.token(at)]), pool.logits[at : at + 1])


def top_k_ids(logits: npt.NDArray[np.floating[Any]], k: int) -> Ids:
    """Indices, ascending, of the `k` highest entries of a float array; exact, and of equal ones the first.

    Block maxima first: the k highest entries can only lie in blocks whose maxima are among the k highest, so a
    partition of the whole row (585 µs at Qwen's 248,320 entries) becomes one of the maxima and one of k blocks
    (105 µs).
    """
    size = len(logits)
    whole = size - size % _BLOCK
    blocks = whole // _BLOCK
    if blocks <= 2 * k:
        return _highest(logits, k)
    peaks = logits[:whole].reshape(blocks, _BLOCK).max(axis=1)
    chosen = np.flatnonzero(peaks >= np.partition(peaks, -k)[-k])
    ids = (chosen[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    ids = np.concatenate([ids, np.arange(whole, size)])
    picked: Ids = ids[_highest(logits[ids], k)]
    return picked


def _highest(values: Logits, k: int) -> Ids:
    if k >= len(values):
        return np.arange(len(values))
    edge = np.partition(values, -k)[-k]
    places = np.flatnonzero(values >= edge)
    if len(places) == k:
        return places
    # More are equal to the edge than there is room for: the first of them.
    equal = np.flatnonzero(values[places] == edge)
    return np.delete(places, equal[len(equal) - (len(places) - k) :])
