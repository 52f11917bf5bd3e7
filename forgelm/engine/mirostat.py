"""Mirostat 1 and 2 (Basu et al.), as in llama.cpp: what is cut is chosen by feedback, to hold the surprise at a target.

`mu` is the state, in bits: the surprise allowed at most. A sequence starts at twice its target.
"""

import math

import numpy as np

from forgelm.engine.pool import Ids, Logits, top_k_ids
from forgelm.ipc.messages import Sampling

_MEASURED = 100
"""Likeliest tokens from which version 1 estimates the distribution's exponent."""


def kept(weights: Logits, sampling: Sampling, mu: float, vocabulary: int) -> Ids:
    """Indices, ascending, of the entries to draw from; at least one. `weights` are probabilities up to a factor."""
    if sampling.mirostat == 1:
        return top_k_ids(weights, _zipf_size(weights, mu, vocabulary))
    least = float(weights.sum(dtype=np.float64)) * 2.0 ** -min(max(mu, -100.0), 1000.0)
    chosen = np.flatnonzero((weights >= least) & (weights > 0.0))
    return chosen if len(chosen) else np.array([weights.argmax()])


def next_mu(weights: Logits, at: int, sampling: Sampling, mu: float) -> float:
    """The state after entry `at` was drawn from those kept."""
    surprise = -math.log2(float(weights[at]) / float(weights.sum(dtype=np.float64)))
    return mu - sampling.mirostat_eta * (surprise - sampling.mirostat_tau)


def _zipf_size(weights: Logits, mu: float, vocabulary: int) -> int:
    """How many of the likeliest have an expected surprise of `mu`, were the distribution Zipf's with the exponent that
    the likeliest show."""
    measured = np.sort(weights[top_k_ids(weights, _MEASURED)])[::-1].astype(np.float64)
    logs = np.log(measured[measured > 0.0])
    if len(logs) < 2:
        return 1
    ranks = np.arange(1, len(logs))
    steps = np.log((ranks + 1) / ranks)
    exponent = float((steps * (logs[:-1] - logs[1:])).sum() / (steps * steps).sum())
    excess = exponent - 1.0
    spread = math.log(vocabulary)
    # excess / (1 − vocabulary^−excess), which tends to 1 / ln(vocabulary).
    scale = -excess / math.expm1(-excess * spread) if abs(excess * spread) > 1e-9 else 1.0 / max(spread, 1e-9)
    power = math.log(scale) + mu * math.log(2.0)
    # A flat distribution's exponent is 0: all of it, or one entry.
    log_size = power / exponent if exponent > 0.0 else math.copysign(math.inf, power)
    return len(weights) if log_size >= math.log(len(weights)) else max(1, int(math.exp(log_size)))
