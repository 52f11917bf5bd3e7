"""Bias and penalties against the slow ones and llama.cpp's own."""

import random
import tracemalloc

import numpy as np
import pytest

from forgelm.engine.penalties import changes_logits, only_lowers, penalised
from forgelm.engine.plan import Draw
from forgelm.engine.pool import Pool
from forgelm.ipc.messages import Sampling
from tests.engine import llamacpp_samplers, slow_sampling
from tests.engine.test_sampling import some_logits
from tests.engine.test_sampling_chain import VOCABULARY, settings, some_draw, text


def apply(logits: np.ndarray, draw: Draw) -> np.ndarray:
    return penalised(Pool(None, logits), draw).logits


@pytest.mark.parametrize("seed", range(200))
def test_all_of_them_together_are_the_slow_ones(seed: int) -> None:
    logits, draw = some_logits(VOCABULARY, seed), some_draw(seed, settings(seed))
    got, wanted = apply(logits, draw), slow_sampling.penalised(logits, draw)
    assert set(np.flatnonzero(got > -np.inf)) == set(wanted)
    assert all(got[token] == pytest.approx(score, rel=1e-5, abs=1e-5) for token, score in wanted.items())
    if not changes_logits(draw):
        assert np.array_equal(got, logits)
    if only_lowers(draw.sampling):
        assert (got <= logits).all()


@pytest.mark.parametrize("seed", range(50))
def test_a_few_candidates_get_the_numbers_of_the_whole_row(seed: int) -> None:
    logits, draw = some_logits(VOCABULARY, seed), some_draw(seed, settings(seed))
    ids = np.sort(np.random.default_rng(seed).choice(VOCABULARY, 30, replace=False))
    for some in (ids, ids[:1], ids[:0]):
        assert np.array_equal(penalised(Pool(some, logits[some]), draw).logits, apply(logits, draw)[some])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("window", [1, 7, 64, 1000])
def test_with_a_window_they_are_llama_cpp_s(seed: int, window: int) -> None:
    rng = random.Random(seed)
    repetition, frequency, presence = rng.choice([1.0, 1.3, 0.7]), rng.choice([0.0, 0.4]), rng.choice([0.0, 1.5, -1.0])
    logits, tokens = some_logits(VOCABULARY, seed), text(seed)
    how = Sampling(
        repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence, penalty_window=window
    )
    with llamacpp_samplers.penalties(VOCABULARY, window, repetition, frequency, presence) as theirs:
        theirs.accept(tokens)
        left, _ = theirs.apply(logits)
    got = apply(logits, Draw(how, 0, 4, tokens))
    assert got == pytest.approx([left[token] for token in range(VOCABULARY)], rel=1e-6, abs=1e-6)


def test_without_a_window_the_prompt_counts_for_repetition_alone() -> None:
    logits, tokens = np.array([2, -2, 2, -2, 0], np.float32), np.array([0, 1, 2, 2, 3], np.int32)
    draw = Draw(Sampling(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=1.0), 0, 3, tokens)
    assert apply(logits, draw).tolist() == [1, -4, 1 - 0.5 - 1, -4 - 0.25 - 1, 0]
    draw = Draw(Sampling(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=1.0), 0, 0, tokens)
    assert apply(logits, draw).tolist() == [1, -4, 1, -4, 0]


def test_bias_and_bans_of_one_token_add_up() -> None:
    how = Sampling(logit_bias=((1, 2.0), (1, 0.5), (2, -100.0)))
    assert apply(np.zeros(4, np.float32), Draw(how, 0, 0, text(1), banned=(3, 3))).tolist() == [0, 2.5, -100, -np.inf]


def test_penalties_on_candidates_make_no_vocabulary() -> None:
    ids = np.arange(0, 248_320, 4000)
    draw = Draw(Sampling(presence_penalty=1.0, frequency_penalty=0.1, dry_multiplier=0.8), 0, 100, ids.astype(np.int32))
    pool = Pool(ids, np.zeros(len(ids), np.float32))
    tracemalloc.start()
    penalised(pool, draw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
