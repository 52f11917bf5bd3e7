"""What is done to logits before anything is cut: bias, banned tokens, and the penalties for repetition.

Works on a pool, so that a few candidates and a whole row get the same numbers.
"""

import numpy as np

from forgelm.engine.dry import dry_penalties
from forgelm.engine.plan import Draw, Tokens
from forgelm.engine.pool import Pool
from forgelm.ipc.messages import Sampling

_MOST = np.float32(np.finfo(np.float32).max)


def changes_logits(draw: Draw) -> bool:
    """Whether `penalised` would do anything."""
    sampling = draw.sampling
    return bool(
        draw.banned
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
        or sampling.dry_multiplier
        or sampling.logit_bias
    )


def only_lowers(sampling: Sampling) -> bool:
    """No logit can rise, whatever the tokens so far: those outside a set of the highest stay below its lowest."""
    return (
        sampling.presence_penalty >= 0.0
        and sampling.frequency_penalty >= 0.0
        and sampling.repetition_penalty >= 1.0
        and sampling.dry_multiplier >= 0.0
        and all(bias <= 0.0 for _, bias in sampling.logit_bias)
    )


def penalised(pool: Pool, draw: Draw) -> Pool:
    """The pool with other logits, in an array of its own. Finite logits that would pass float32's range stay in it at
    the top and become −inf at the bottom."""
    sampling = draw.sampling
    pool = Pool(pool.ids, pool.logits.copy())
    with np.errstate(over="ignore"):
        if sampling.logit_bias:
            _bias(pool, sampling.logit_bias)
        if draw.banned:
            _, at = pool.places(np.array(draw.banned, np.int32))
            pool.logits[at] = -np.inf
        _repeated(pool, draw)
        if sampling.dry_multiplier:
            _dry(pool, draw)
    return pool


def _bias(pool: Pool, biases: tuple[tuple[int, float], ...]) -> None:
    found, at = pool.places(np.array([token for token, _ in biases], np.int32))
    # `add.at`, as a token may be listed more than once.
    np.add.at(pool.logits, at, np.array([bias for _, bias in biases], np.float32)[found])
    pool.logits[at] = np.minimum(pool.logits[at], _MOST)


def _repeated(pool: Pool, draw: Draw) -> None:
    """Repetition, frequency and presence, in this order: Hugging Face's and vLLM's rules, or with a window
    llama.cpp's."""
    sampling, window = draw.sampling, draw.sampling.penalty_window
    seen, counted = draw.tokens, draw.generated
    if window:
        seen = counted = draw.tokens if window < 0 else draw.tokens[-window:]
    if sampling.repetition_penalty != 1.0:
        _repetition(pool, seen, np.float32(sampling.repetition_penalty))
    if sampling.frequency_penalty or sampling.presence_penalty:
        _, at = pool.places(counted)
        if sampling.frequency_penalty:
            once, counts = np.unique(at, return_counts=True)
            pool.logits[once] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        # Indexed assignment takes one off a token however often it is in the list: presence, not frequency.
        pool.logits[at] -= np.float32(sampling.presence_penalty)


def _repetition(pool: Pool, seen: Tokens, penalty: np.float32) -> None:
    _, at = pool.places(seen)
    before = pool.logits[at]
    pool.logits[at] = np.minimum(np.where(before > 0, before / penalty, before * penalty), _MOST)


def _dry(pool: Pool, draw: Draw) -> None:
    tokens, penalties = dry_penalties(draw.tokens, draw.sampling)
    found, at = pool.places(tokens)
    pool.logits[at] -= penalties[found]
