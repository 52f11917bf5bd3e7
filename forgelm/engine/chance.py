"""Random numbers, and the pick of one of several by weight.

A number is a hash of (seed, choice, index): counter-based, so that recomputing a preempted sequence or replaying a
request draws the same ones whatever else ran beside it.

Candidates race: each token has a number of its own, a hash of the above and its id, which makes an exponential waiting
time, divided by its weight; the first to arrive is drawn. That is exactly a draw by weight (the Gumbel-max trick;
Huijben et al. 2022 review it). It depends neither on the order of the candidates nor on those that were cut. And two
models that draw with the same numbers draw the same token with a probability of at least (1 − d) / (1 + d), where d is
the total variation between their distributions; no rule that knows one of the two alone does better in the worst case
(Daliri et al. 2024, "Coupling without communication and drafter-invariant speculative decoding"). A model that drafts
lives on that.
"""

import struct
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Draw
from forgelm.engine.pool import Ids, Logits

MOST_RACING = 1024
"""Of more candidates one number picks, in the order they are in: a number for each would take too long."""
_COUNTER = struct.Struct("<QII")
_RACE = b"race"
"""The stream of hashes from which tokens get their own numbers."""
# Arrays without a dimension, since NumPy takes half as long over these as over its scalars.
_GAMMA, _MIX_1, _MIX_2 = map(np.asarray, np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], "u8"))
"""SplitMix64's constants (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
_BY_30, _BY_27, _BY_31, _BY_12 = map(np.asarray, np.array([30, 27, 31, 12], "u8"))
_UNIT, _HALF = map(np.asarray, np.array([2.0**-52, 2.0**-53]))


def pick(ids: Ids | None, weights: Logits, draw: Draw) -> int:
    """The index drawn, each in proportion to its weight. `ids`, shape (n,), are the tokens that `weights`, shape (n,),
    belong to; None: 0 … n − 1. Weights are finite, not negative, and not all 0."""
    sampling = draw.sampling
    if len(weights) > MOST_RACING:
        return _at(weights, uniform(sampling.seed, draw.choice, draw.index))
    tokens = np.arange(len(weights)) if ids is None else ids
    numbers = token_uniforms(sampling.seed, draw.choice, draw.index, tokens)
    # The waiting times are −log(number) / weight; their inverses need no weight that isn't 0.
    return int((weights / np.log(numbers)).argmin())


def _at(weights: Logits, point: float) -> int:
    """The index whose share of the summed weights holds `point`, a number in [0, 1)."""
    # In float32 a sum over a whole vocabulary would lose the small weights at its end.
    cumulative = weights.cumsum(dtype=np.float64)
    at = int(cumulative.searchsorted(point * cumulative[-1], side="right"))
    # Rounding can put the point on the total itself; the last candidate with any weight is meant then.
    return at if at < len(weights) else int(np.flatnonzero(weights)[-1])


def uniform(seed: int, choice: int, index: int, stream: bytes = b"") -> float:
    """A number in [0, 1) that depends on nothing but its arguments; `stream` is at most 16 bytes."""
    return (_hash(seed, choice, index, stream) >> 11) * 2.0**-53


def token_uniforms(seed: int, choice: int, index: int, ids: Ids) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each of the tokens `ids`, shape (n,), that depends on nothing but the token and the other
    arguments: the token's place in the SplitMix64 sequence that starts at their hash; 52 bits and a half, so that none
    is 0 or 1."""
    state = ids.view(np.uint64) * _GAMMA
    state += np.array(_hash(seed, choice, index, _RACE), np.uint64)
    state ^= state >> _BY_30
    state *= _MIX_1
    state ^= state >> _BY_27
    state *= _MIX_2
    state ^= state >> _BY_31
    state >>= _BY_12
    numbers: npt.NDArray[np.float64] = state * _UNIT
    numbers += _HALF
    return numbers


def _hash(seed: int, choice: int, index: int, stream: bytes) -> int:
    """64 bits."""
    counter = _COUNTER.pack(seed & 0xFFFFFFFFFFFFFFFF, choice, index)
    return int.from_bytes(blake2b(counter, digest_size=8, person=stream).digest(), "little")
