"""Picking a token from a row of logits, on the host, in NumPy.

Order: presence penalty, temperature, min-p, top-k, top-p, draw: vLLM's order, which the Qwen3.5 cards' values assume.
Random numbers are a hash of (seed, choice, index): counter-based, so that recomputing a preempted sequence or
replaying a request draws the same ones whatever else ran beside it.
"""

import struct
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Draw, Tokens

Logits = npt.NDArray[np.float32]

_COUNTER = struct.Struct("<QII")
GREEDY_BELOW = 1e-5
"""Temperatures below count as 0: what they tell apart is finer than a float32 logit, and 1e-46 is 0 in float32."""
FIRST_NUCLEUS = 64
"""Entries among which a nucleus is looked for first."""
_BLOCK = 256
"""Entries per block of the exact top-k: the k highest lie in the k blocks with the highest maxima."""


def draw_token(logits: Logits, draw: Draw) -> int:
    """The next token given `logits`, shape (vocabulary,), which is left unchanged."""
    sampling = draw.sampling
    if sampling.presence_penalty:
        logits = _penalised(logits, draw.generated, sampling.presence_penalty)
    if sampling.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    ids, candidates = _candidates(logits, sampling.top_k)
    weights = _weights(candidates, sampling.temperature)
    if sampling.min_p > 0.0:
        weights[weights < sampling.min_p] = 0.0
    if sampling.top_p < 1.0:
        kept = _nucleus(weights, sampling.top_p)
        weights = weights[kept]
        ids = kept if ids is None else ids[kept]
    at = _pick(weights, uniform(sampling.seed, draw.choice, draw.index))
    return at if ids is None else int(ids[at])


def _pick(weights: Logits, point: float) -> int:
    """The index whose share of the summed weights holds `point`, a number in [0, 1)."""
    # In float32 a sum over a whole vocabulary would lose the small weights at its end.
    cumulative = np.cumsum(weights, dtype=np.float64)
    at = int(np.searchsorted(cumulative, point * cumulative[-1], side="right"))
    # Rounding can put the point on the total itself; the last candidate with any weight is meant then.
    return at if at < len(weights) else int(np.flatnonzero(weights)[-1])


def uniform(seed: int, choice: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = blake2b(_COUNTER.pack(seed & 0xFFFFFFFFFFFFFFFF, choice, index), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def top_k_ids(logits: Logits, k: int) -> npt.NDArray[np.intp]:
    """Ids of the `k` highest logits, in no particular order; exact.

    Block maxima first: the k highest entries can only lie in the k blocks whose maxima are highest, so a partition of
    the whole row (585 µs at Qwen's 248,320 entries) becomes one of the maxima and one of k blocks (105 µs).
    """
    size = len(logits)
    whole = size - size % _BLOCK
    blocks = whole // _BLOCK
    if blocks <= 2 * k:
        return _partition(logits, k)
    table = logits[:whole].reshape(blocks, _BLOCK)
    chosen = _partition(table.max(axis=1), k)
    ids = (chosen[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    ids = np.concatenate([ids, np.arange(whole, size)])
    picked: npt.NDArray[np.intp] = ids[_partition(logits[ids], k)]
    return picked


def _partition(values: Logits, k: int) -> npt.NDArray[np.intp]:
    if k >= len(values):
        return np.arange(len(values))
    return np.argpartition(values, -k)[-k:]


def _candidates(logits: Logits, top_k: int) -> tuple[npt.NDArray[np.intp] | None, Logits]:
    """Ids (None: every token in order) and their logits.

    Ids are sorted, so that a draw does not depend on the order in which a partition left them.
    """
    if 0 < top_k < len(logits):
        ids = np.sort(top_k_ids(logits, top_k))
        return ids, logits[ids]
    return None, logits


def _weights(logits: Logits, temperature: float) -> Logits:
    """Probabilities at `temperature`, up to a factor: the highest is 1."""
    # Distances to the highest, so that nothing grows; one that float32 can't hold is infinite, which is right.
    with np.errstate(over="ignore"):
        weights: Logits = np.exp((logits - logits.max()) / np.float32(temperature))
    return weights


def _nucleus(weights: Logits, top_p: float) -> npt.NDArray[np.intp]:
    """Indices, ascending, of the fewest highest weights whose sum reaches `top_p` of the total; at least one.

    Usually a few dozen entries hold that share: they are looked for among ever more of the highest, since sorting a
    whole vocabulary takes milliseconds per token.
    """
    wanted = top_p * float(weights.sum(dtype=np.float64))
    most = FIRST_NUCLEUS
    while True:
        highest = top_k_ids(weights, most)
        highest = highest[np.lexsort((highest, -weights[highest]))]
        reached = np.cumsum(weights[highest], dtype=np.float64)
        keep = int(np.searchsorted(reached, wanted, side="left")) + 1
        if keep <= len(highest) or len(highest) == len(weights):
            return np.sort(highest[:keep])
        most *= 8


def _penalised(logits: Logits, generated: Tokens, penalty: float) -> Logits:
    penalised = logits.copy()
    # Indexed assignment takes one off a token however often it is in the list: presence, not frequency.
    penalised[generated] -= np.float32(penalty)
    return penalised
