"""Samplers at the ends of their ranges, together, on ordinary and degenerate rows; any NumPy warning fails the test."""

import math
import random

import numpy as np
import pytest

from forgelm.engine.plan import Draw
from forgelm.engine.sampling import draw_candidates, draw_token
from forgelm.ipc.messages import Sampling
from tests.engine.test_sampling import some_logits

HUGE = float(np.finfo(np.float32).max)
EXTREMES = {
    "temperature": [0.0, 1e-5, 1e-3, 2.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "repetition_penalty": [0.01, 10.0],
    "penalty_window": [-1, 1],
    "top_k": [1, 20, 100_000],
    "top_p": [1e-9, 0.999999],
    "min_p": [1e-9, 1.0],
    "typical_p": [1e-9, 0.999999],
    "top_n_sigma": [1e-3, 10.0],
    "xtc_threshold": [0.0, 0.5],
    "dry_multiplier": [5.0, 1e30],
    "dry_base": [1.0, 100.0],
    "dry_allowed_length": [1, 50],
    "mirostat": [1, 2],
    "mirostat_tau": [0.0, 10.0],
    "logit_bias": [((0, 100.0), (1, -100.0))],
}
ROWS = {
    "ordinary": some_logits(5000),
    "one is possible": np.where(np.arange(5000) == 77, 1.0, -np.inf).astype(np.float32),
    "flat": np.zeros(5000, np.float32),
    "huge": np.where(np.arange(5000) % 2, HUGE, -HUGE).astype(np.float32),
    "the largest vocabulary": some_logits(248_320),
}


@pytest.mark.parametrize("logits", ROWS.values(), ids=ROWS.keys())
def test_extremes_give_a_token_that_is_possible(logits: np.ndarray) -> None:
    rng = random.Random(1)
    tokens = np.array([0, 1, 1, 77, 4999] * 30, np.int32)
    for _ in range(60 if len(logits) < 10_000 else 25):
        chosen = {name: rng.choice(values) for name, values in EXTREMES.items() if rng.random() < 0.3}
        how = Sampling(xtc_probability=rng.choice([0.0, 1.0]), seed=rng.randrange(2**63), **chosen)
        drawn = draw_token(logits, Draw(how, 0, 100, tokens, logprobs=rng.choice([-1, 20]), mu=2 * how.mirostat_tau))
        assert drawn.problem == ""
        assert logits[drawn.token] > -np.inf
        assert math.isfinite(drawn.mu)
        if drawn.logprobs:
            assert math.isfinite(drawn.logprobs.logprob)
        best = np.argsort(-logits, kind="stable")[:128].astype(np.int32)
        few = draw_candidates(best, logits[best], Draw(how, 0, 100, tokens))
        assert few is None or few.token == drawn.token
