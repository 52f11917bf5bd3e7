"""Typical, top-p, top-n-sigma and XTC, each against its slow form and llama.cpp's own."""

import math
import random

import numpy as np
import pytest

from forgelm.engine.pool import Pool, ranked
from forgelm.engine.truncation import nucleus, ranked_nucleus, typical, within_sigma, without_top_choices
from tests.engine import llamacpp_samplers, slow_sampling
from tests.engine.test_sampling import some_logits

SIZE = 500


def row(seed: int) -> np.ndarray:
    """Peaked or flat, with some impossible tokens."""
    logits = some_logits(SIZE, seed, spread=[0.3, 1.5, 4.0][seed % 3])
    if seed % 2:
        logits[random.Random(seed).sample(range(SIZE), 450)] = -np.inf
    return logits


def scores(logits: np.ndarray) -> dict[int, float]:
    return {token: float(logit) for token, logit in enumerate(logits) if logit > -np.inf}


def weights(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = logits - logits.max()
    return np.exp(distances), distances


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_typical(share: float) -> None:
    for seed in range(20):
        logits = row(seed)
        kept = set(typical(*weights(logits), share).tolist())
        assert kept == set(slow_sampling.typical(slow_sampling.softmax(scores(logits)), share))
        if not seed % 2:  # llama.cpp's makes NaN of impossible tokens
            with llamacpp_samplers.typical(share) as theirs:
                assert kept == set(theirs.apply(logits)[0])


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_top_p_in_order_and_out_of_it(share: float) -> None:
    for seed in range(20):
        logits = row(seed)
        wanted = set(slow_sampling.top_p(slow_sampling.softmax(scores(logits)), share))
        assert set(nucleus(weights(logits)[0], share).tolist()) == wanted
        ids, ordered = ranked(Pool(None, logits), SIZE)
        assert set(ids[: ranked_nucleus(weights(ordered)[0], share)].tolist()) == wanted


def test_a_share_that_is_reached_exactly_takes_no_more() -> None:
    equal = np.ones(8, np.float32)
    assert nucleus(equal, 0.5).tolist() == [0, 1, 2, 3]
    assert ranked_nucleus(equal, 0.5) == 4
    assert typical(equal, np.zeros(8, np.float32), 0.5).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("sigmas", [0.1, 1.0, 2.5])
def test_top_n_sigma(sigmas: float) -> None:
    for seed in range(20):
        logits = row(seed)
        kept = set(np.flatnonzero(within_sigma(logits, sigmas) > -np.inf).tolist())
        assert kept == set(slow_sampling.top_n_sigma(scores(logits), sigmas))
        with llamacpp_samplers.top_n_sigma(sigmas) as theirs:
            assert kept == {token for token, logit in theirs.apply(logits)[0].items() if logit > -math.inf}


@pytest.mark.parametrize("threshold", [0.001, 0.01, 0.1, 0.3, 0.5])
def test_exclude_top_choices(threshold: float) -> None:
    for seed in range(20):
        logits = row(seed)
        before, _ = weights(logits)
        after = without_top_choices(before, threshold)
        kept = set(np.flatnonzero(after).tolist())
        assert np.array_equal(after[list(kept)], before[list(kept)])
        assert kept == set(slow_sampling.exclude_top_choices(slow_sampling.softmax(scores(logits)), threshold))
        with llamacpp_samplers.exclude_top_choices(threshold) as theirs:
            assert kept == {token for token, logit in theirs.apply(logits)[0].items() if logit > -math.inf}


def test_of_equal_top_choices_the_last_stays() -> None:
    assert without_top_choices(np.ones(3, np.float32), 0.1).tolist() == [0, 0, 1]
    assert without_top_choices(np.ones(2, np.float32), 0.5).tolist() == [0, 1]
