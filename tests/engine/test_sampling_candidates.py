"""Drawing from a row's highest logits alone: the same token as from the whole row, or None where they don't tell."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from forgelm.engine.plan import Draw, Drawn
from forgelm.engine.sampling import draw_candidates, draw_token, fits_candidates
from forgelm.ipc.messages import Sampling
from tests.engine.slow_sampling import FixedMask, distribution, penalised, ranking

VOCABULARY = 400
K = 64
ROWS_PER_SEED = 25


def lowering(rng: random.Random) -> Sampling:
    """Settings that fit."""

    def some(*values: float) -> float:
        return values[0] if rng.random() < 0.5 else rng.choice(values[1:])

    return Sampling(
        seed=rng.randrange(2**63),
        temperature=some(1.0, 0.0, 0.3, 2.0),
        top_k=int(some(20, 1, 2, 40, 62, 63)),
        top_p=some(1.0, 0.5, 0.95),
        min_p=some(0.0, 0.01, 0.1, 0.5),
        presence_penalty=some(0.0, 0.5, 2.0),
        frequency_penalty=some(0.0, 0.1, 2.0),
        repetition_penalty=some(1.0, 1.1, 2.0),
        penalty_window=int(some(0, -1, 30)),
        typical_p=some(1.0, 0.5, 0.9),
        xtc_probability=some(0.0, 0.5, 1.0),
        xtc_threshold=some(0.1, 0.02),
        dry_multiplier=some(0.0, 0.8),
        logit_bias=((3, -100.0), (5, -0.5)) if rng.random() < 0.2 else (),
    )


def some_row(rng: random.Random) -> np.ndarray:
    """Some continuous, some with so few different values that ties are everywhere, some with impossible tokens."""
    row = np.random.default_rng(rng.randrange(2**32)).standard_normal(VOCABULARY).astype(np.float32) * 3
    kind = rng.randrange(4)
    if kind == 1:
        row = np.round(row * 2) / 2
    elif kind == 2:
        row[np.array(rng.sample(range(VOCABULARY), rng.choice([100, 330, 350, 399])))] = -np.inf
    return row


def highest(row: np.ndarray, rng: random.Random) -> np.ndarray:
    """Ids of the K highest in no order; which of equal ones is chance, as on a device."""
    ids = list(range(len(row)))
    rng.shuffle(ids)
    ids = sorted(ids, key=lambda id: -row[id])[:K]
    rng.shuffle(ids)
    return np.array(ids, np.int32)


def some_case(rng: random.Random) -> tuple[np.ndarray, np.ndarray, Draw]:
    row, how = some_row(rng), lowering(rng)
    ids = highest(row, rng)
    tokens = np.array(rng.choices(ids.tolist(), k=50) + rng.choices(range(VOCABULARY), k=20), np.int32)
    rng.shuffle(tokens)
    index = rng.choice([0, 5, 30, 70])
    banned = tuple(rng.sample(range(VOCABULARY), 2)) + tuple(ids[:2].tolist()) if rng.random() < 0.2 else ()
    return row, ids, Draw(how, rng.randrange(4), index, tokens, banned=banned)


def unsure(row: np.ndarray, ids: np.ndarray, draw: Draw, drawn: Drawn) -> bool:
    """Whether tokens as high as the lowest candidate, outside, could have made another token be drawn."""
    how, floor = draw.sampling, float(row[ids].min())
    ranked = ranking({token: score for token, score in penalised(row, draw).items() if token in set(ids.tolist())})
    if not ranked or ranked[0][1] <= floor:
        return True
    scores = penalised(row, draw)
    if how.temperature < 1e-5:
        return scores.get(drawn.token, -math.inf) <= floor
    # Logits as float32 has them: the slow ones differ in their last digits.
    scarce = len(ranked) < how.top_k or ranked[how.top_k - 1][1] < floor + 1e-5
    cut = math.exp((floor - ranked[0][1]) / how.temperature) < how.min_p
    low = any(scores[token] <= floor + 1e-5 for token in distribution(row, draw))
    return low or (scarce and not cut) or abs(cut - how.min_p) < 1e-3


@pytest.mark.parametrize("seed", range(120))
def test_the_highest_logits_give_the_whole_row_s_token_or_none(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(ROWS_PER_SEED):
        row, ids, draw = some_case(rng)
        logits = row[ids]
        before = logits.copy()
        drawn, whole = draw_candidates(ids, logits, draw), draw_token(row, draw)
        assert np.array_equal(logits, before)
        if drawn is None:
            assert whole.problem or unsure(row, ids, draw, whole)
        else:
            assert drawn == whole


def test_most_draws_need_no_more() -> None:
    """Qwen3.5's settings: of 2,000 draws with 64 candidates and tokens of the answer among them, every one is told."""
    rng, how = random.Random(1), Sampling(top_k=20, top_p=0.95, presence_penalty=1.5)
    for index in range(2000):
        row = np.random.default_rng(index).standard_normal(VOCABULARY).astype(np.float32) * 3
        ids = highest(row, rng)
        tokens = np.array(rng.choices(ids.tolist(), k=20), np.int32)
        assert draw_candidates(ids, row[ids], Draw(how, index, 20, tokens)) is not None


def test_what_lies_outside_could_change_the_draw_where_none_is_told() -> None:
    """Two rows with the same candidates, one of which has more tokens just below: their tokens differ, so None."""
    ids, logits = np.arange(4, dtype=np.int32), np.array([3, 2.5, 2, 1], np.float32)
    low, high = np.full(10, -9, np.float32), np.full(10, 0.99, np.float32)
    low[:4] = high[:4] = logits
    how = Sampling(top_k=3, repetition_penalty=3.0)
    told = [draw_candidates(ids, logits, Draw(how, choice, 0, np.arange(4, dtype=np.int32))) for choice in range(50)]
    assert told == [None] * 50
    draws = [Draw(how, choice, 0, np.arange(4, dtype=np.int32)) for choice in range(50)]
    assert [draw_token(low, draw) for draw in draws] != [draw_token(high, draw) for draw in draws]


def test_min_p_makes_up_for_missing_candidates() -> None:
    """The third best is lower than what may lie outside, but min-p cuts both."""
    ids, logits = np.arange(4, dtype=np.int32), np.array([9, 8.5, 2, 1], np.float32)
    row = np.full(10, 0.9, np.float32)
    row[:4] = logits
    for min_p, told in ((0.01, True), (0.0001, False)):
        how = Sampling(top_k=3, frequency_penalty=1.0, min_p=min_p)
        for choice in range(40):
            draw = Draw(how, choice, 4, np.array([2, 2, 3, 3], np.int32))
            drawn = draw_candidates(ids, logits, draw)
            assert (drawn is not None) == told
            assert drawn in (None, draw_token(row, draw))


def test_a_tie_with_the_lowest_candidate_is_not_told_where_it_may_be_drawn() -> None:
    """Token 0, outside, is as high as the last candidates and comes before them."""
    row, ids = np.array([1, 5, 1, 1, 0], np.float32), np.array([1, 3, 2], np.int32)
    results = set()
    for choice in range(200):
        draw = Draw(Sampling(top_k=2, temperature=2.0), choice, 0, np.array([4], np.int32))
        assert draw_candidates(ids, row[ids], draw) is None
        results.add(draw_token(row, draw).token)
        for cut in ({"top_p": 0.5}, {"min_p": 0.5}, {"xtc_probability": 1.0, "xtc_threshold": 0.1}):
            how = replace(draw, sampling=Sampling(top_k=2, temperature=2.0, **cut))
            told = draw_candidates(ids, row[ids], how)
            assert told == (None if "xtc_threshold" in cut else draw_token(row, how))
    assert results == {0, 1}


MATCHER = FixedMask(None, VOCABULARY)


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        (Sampling(temperature=0.0), True),
        (Sampling(temperature=0.0, top_n_sigma=1.0, mirostat=2), True),
        (Sampling(), False),
        (Sampling(top_k=63), True),
        (Sampling(top_k=64), False),
        (Sampling(top_k=20, top_p=0.8, min_p=0.1, typical_p=0.5, xtc_probability=0.5), True),
        (Sampling(top_k=20, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=2.0), True),
        (Sampling(top_k=20, dry_multiplier=0.8), True),
        (Sampling(top_k=20, presence_penalty=-0.1), False),
        (Sampling(top_k=20, frequency_penalty=-0.1), False),
        (Sampling(top_k=20, repetition_penalty=0.9), False),
        (Sampling(temperature=0.0, presence_penalty=-0.1), False),
        (Sampling(top_k=20, top_n_sigma=1.0), False),
        (Sampling(top_k=20, mirostat=1), False),
        (Sampling(top_k=20, logit_bias=((1, -5.0), (2, 0.0))), True),
        (Sampling(top_k=20, logit_bias=((1, -5.0), (2, 0.1))), False),
    ],
)
def test_which_requests_fit(how: Sampling, fits: bool) -> None:
    assert fits_candidates(how, -1, None, K) == fits
    assert not fits_candidates(how, 0, None, K)
    assert not fits_candidates(how, -1, MATCHER, K)
    if not fits:
        row = np.random.default_rng(1).standard_normal(VOCABULARY).astype(np.float32)
        ids = highest(row, random.Random(1))
        assert draw_candidates(ids, row[ids], Draw(how, 0, 0, ids)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_candidates_that_are_no_numbers_tell_nothing(value: float) -> None:
    ids, logits = np.arange(K, dtype=np.int32), np.full(K, value, np.float32)
    for how in (Sampling(temperature=0.0), Sampling(top_k=5), Sampling(top_k=5, presence_penalty=1.0)):
        assert draw_candidates(ids, logits, Draw(how, 0, 3, ids[:3])) is None
