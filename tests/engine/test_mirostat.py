"""Mirostat against its slow form and llama.cpp's own, and that it does what it is for."""

import math
import random

import numpy as np
import pytest

from forgelm.engine import mirostat
from forgelm.engine.plan import Draw
from forgelm.engine.sampling import draw_token
from forgelm.ipc.messages import Sampling
from tests.engine import llamacpp_samplers, slow_sampling
from tests.engine.test_sampling import some_logits
from tests.engine.test_truncation import SIZE, row, scores, weights


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [0.5, 3.0, 5.0])
def test_mirostat_keeps_and_learns_what_llama_cpp_s_does(version: int, tau: float) -> None:
    """Their draws, our state, over 30 steps; no target so high that their size overflows, where they keep one."""
    how, mu = Sampling(mirostat=version, mirostat_tau=tau, mirostat_eta=0.1), 2 * tau
    with llamacpp_samplers.mirostat(version, SIZE, tau, 0.1) as theirs:
        for step in range(30):
            logits = some_logits(SIZE, step, spread=[1.2, 2.0, 4.0][step % 3])
            row_weights, _ = weights(logits)
            kept = mirostat.kept(row_weights, how, mu, SIZE)
            left, token = theirs.apply(logits)
            # A rounding in float32 may be one token more or less.
            assert abs(len(kept) - len(left)) <= 1
            assert set(kept.tolist()) <= set(left) or set(left) <= set(kept.tolist())
            mu = mirostat.next_mu(row_weights[kept], int(np.searchsorted(kept, token)), how, mu)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_what_its_definition_says(version: int) -> None:
    for seed in range(60):
        logits, mu = row(seed), random.Random(seed).choice([0.2, 2.0, 6.0, 9.0, 40.0])
        how = Sampling(mirostat=version)
        slow = slow_sampling.mirostat_kept(slow_sampling.softmax(scores(logits)), how, mu, SIZE)
        assert set(mirostat.kept(weights(logits)[0], how, mu, SIZE).tolist()) & set(scores(logits)) == slow


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise_and_cuts_nothing_else(version: int) -> None:
    """The mean surprise of what is drawn goes to tau, on one distribution and on another."""
    for seed, tau in ((1, 2.0), (2, 4.0)):
        logits = some_logits(2000, seed, spread=1.5)
        how = Sampling(mirostat=version, mirostat_tau=tau, top_k=1, top_p=0.01, min_p=0.9, seed=seed)
        mu, surprises = 2 * tau, []
        for index in range(1500):
            drawn = draw_token(logits, Draw(how, 0, index, np.zeros(index, np.int32), mu=mu))
            surprises.append(-(drawn.mu - mu) / how.mirostat_eta + tau)
            mu = drawn.mu
        assert np.mean(surprises[500:]) == pytest.approx(tau, abs=0.15)
        assert len(set(surprises)) > 3


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mu", [-1e6, -3.0, 0.0, 10.0, 1e6])
def test_mirostat_on_degenerate_rows(version: int, mu: float) -> None:
    how = Sampling(mirostat=version)
    one = np.full(SIZE, -np.inf, np.float32)
    one[7] = 3
    for logits in (one, np.zeros(SIZE, np.float32), np.zeros(1, np.float32), some_logits(SIZE)):
        drawn = draw_token(logits, Draw(how, 0, 0, np.zeros(1, np.int32), mu=mu))
        assert logits[drawn.token] > -np.inf
        assert math.isfinite(drawn.mu)
    assert draw_token(one, Draw(how, 0, 0, np.zeros(1, np.int32), mu=mu)).token == 7


def test_other_draws_hand_mirostat_s_state_on() -> None:
    for how in (Sampling(), Sampling(temperature=0.0), Sampling(top_k=4), Sampling(mirostat=2, temperature=0.0)):
        assert draw_token(row(0), Draw(how, 0, 0, np.zeros(1, np.int32), mu=7.25)).mu == 7.25
