"""What cuts a distribution before the draw: top-n-sigma, typical, top-p and XTC, each a function of arrays.

Weights are probabilities up to a factor, float32, shape (n,); what was cut weighs 0. Of equal weights the first counts
as the higher.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.engine.pool import Ids, Logits, top_k_ids

_FIRST = 64
"""Entries among which those to keep are looked for first."""


def within_sigma(logits: Logits, sigmas: float) -> Logits:
    """The logits, −inf where they are further below the highest than `sigmas` standard deviations of the finite ones.

    The same at every temperature, which scales distances and deviation alike.
    """
    finite = logits[np.isfinite(logits)].astype(np.float64)
    if not len(finite):
        return logits
    return np.where(logits < finite.max() - sigmas * finite.std(), np.float32(-np.inf), logits)


def typical(weights: Logits, distances: Logits, share: float) -> Ids:
    """Indices, ascending, of the fewest entries with `share` of the weight whose surprise is closest to the expected.

    `distances` are the entries' log-weights (Meister et al., "Locally typical sampling"). At least one is kept.
    """
    total = float(weights.sum(dtype=np.float64))
    positive = weights > 0.0
    logs = np.where(positive, distances, np.float32(0.0)).astype(np.float64)
    # log p and the entropy hold the same normaliser; it falls out of their difference.
    expected = float((weights * logs).sum()) / total
    closeness = np.where(positive, -np.abs(logs - expected), -np.inf)
    return _fewest(closeness, weights, share * total)


def nucleus(weights: Logits, share: float) -> Ids:
    """Indices, ascending, of the fewest highest weights that hold `share` of the total; at least one."""
    return _fewest(weights, weights, share * float(weights.sum(dtype=np.float64)))


def ranked_nucleus(weights: Logits, share: float) -> int:
    """`nucleus` for weights that descend: how many to keep."""
    reached = weights.cumsum(dtype=np.float64)
    return int(reached.searchsorted(share * reached[-1])) + 1


def _fewest(order: npt.NDArray[np.floating[Any]], weights: Logits, wanted: float) -> Ids:
    """Indices, ascending, of the entries highest in `order` whose weights sum to `wanted`.

    Usually a few dozen hold that much: they are looked for among ever more of the highest, since sorting a whole
    vocabulary takes milliseconds per token.
    """
    most = _FIRST
    while True:
        highest = top_k_ids(order, most)
        highest = highest[(-order[highest]).argsort(kind="stable")]
        reached = weights[highest].cumsum(dtype=np.float64)
        keep = int(reached.searchsorted(wanted)) + 1
        if keep <= len(highest) or len(highest) == len(weights):
            return np.sort(highest[:keep])
        most *= 8


def without_top_choices(weights: Logits, threshold: float) -> Logits:
    """XTC ("exclude top choices", by p-e-w): of the entries with a probability of at least `threshold` only the least
    likely one keeps its weight."""
    least_weight = threshold * float(weights.sum(dtype=np.float64))
    above = np.flatnonzero((weights >= least_weight) & (weights > 0.0))
    if len(above) < 2:
        return weights
    least = above[len(above) - 1 - int(weights[above][::-1].argmin())]
    cut = weights.copy()
    cut[above] = 0.0
    cut[least] = weights[least]
    return cut
