"""Which tokens a grammar allows, one bit each, applied to logits. A mask is whole words: bits past the end of the
vocabulary mean nothing, and a token past the end of the mask is not allowed."""

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Mask
from forgelm.engine.pool import Ids, Logits, Pool

_FEW = 4
"""Less than a vocabulary's n-th part is few: gathering those takes less than striking out the others."""


def allows_few(mask: Mask, vocabulary: int) -> bool:
    # NumPy counts the bits of a signed number's absolute value.
    return int(np.bitwise_count(mask.view(np.uint32)).sum(dtype=np.int64)) * _FEW < vocabulary


def gathered(logits: Logits, mask: Mask) -> Pool:
    """The allowed tokens of a whole row."""
    words = np.flatnonzero(mask)
    bits = np.flatnonzero(_bits(mask[words]).view(np.bool_))
    ids = words[bits >> 5] * 32 + (bits & 31)
    ids = ids[: np.searchsorted(ids, len(logits))]
    return Pool(ids, logits[ids])


def struck_out(logits: Logits, mask: Mask) -> Logits:
    """A whole row with −inf for what isn't allowed."""
    return np.where(_bits(mask, len(logits)).view(np.bool_), logits, np.float32(-np.inf))


def are_allowed(mask: Mask, ids: Ids) -> npt.NDArray[np.bool_]:
    words = ids >> 5
    bits = (mask[np.minimum(words, len(mask) - 1)] >> (ids & 31)) & 1
    allowed: npt.NDArray[np.bool_] = (bits != 0) & (words < len(mask))
    return allowed


def is_allowed(mask: Mask, token: int) -> bool:
    word = token >> 5
    return word < len(mask) and bool((int(mask[word]) >> (token & 31)) & 1)


def _bits(mask: Mask, count: int | None = None) -> npt.NDArray[np.uint8]:
    """0 or 1 per token; zeros where the mask is shorter than `count`."""
    return np.unpackbits(np.ascontiguousarray(mask, "<i4").view(np.uint8), count=count, bitorder="little")
