"""Drawing tokens, against a distribution computed another way: in float64, by sorting, one filter after the other."""

import math
from dataclasses import replace

import numpy as np
import pytest

from forgelm.engine import chance
from forgelm.engine.chance import MOST_RACING, pick
from forgelm.engine.plan import Draw
from forgelm.engine.sampling import draw_token
from forgelm.engine.truncation import nucleus
from forgelm.ipc.messages import Sampling
from tests.engine.picks import shares
from tests.engine.slow_sampling import FixedMask

FALSE_ALARM = 1e-6
"""Of each chi-square test here, were its seeds not fixed."""
_Z = 4.7534
"""The normal distribution's quantile for FALSE_ALARM."""


def draw(settings: Sampling, index: int = 0, *, choice: int = 0, generated: dict[int, int] | None = None) -> Draw:
    tokens = [token for token, times in (generated or {}).items() for _ in range(times)]
    # An index counts what was generated; tokens of the answer come on top, so that all of them are in it.
    return Draw(settings, choice, len(tokens) + index, np.array(tokens, np.int32))


def token(logits: np.ndarray, how: Draw) -> int:
    drawn = draw_token(logits, how)
    assert drawn.problem == ""
    return drawn.token


def exact(logits: np.ndarray, settings: Sampling, generated: dict[int, int] | None = None) -> np.ndarray:
    """Every token's probability."""
    scores = {token: float(logit) for token, logit in enumerate(logits)}
    for token in generated or {}:
        scores[token] -= settings.presence_penalty
    best = max(scores.values())
    weights = {token: math.exp((score - best) / settings.temperature) for token, score in scores.items()}
    weights = {token: weight for token, weight in weights.items() if weight >= settings.min_p}
    ranked = sorted(weights.items(), key=lambda item: -item[1])
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    total, kept, reached = sum(weight for _, weight in ranked), [], 0.0
    for token, weight in ranked:
        kept.append((token, weight))
        reached += weight
        if reached >= settings.top_p * total:
            break
    probabilities = np.zeros(len(logits))
    for token, weight in kept:
        probabilities[token] = weight / reached
    return probabilities


def some_logits(size: int, seed: int = 1, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """The statistic, cells that expect fewer than five pooled, and the value that chance exceeds with FALSE_ALARM."""
    expected = probabilities * counts.sum()
    small = expected < 5
    seen = np.append(counts[~small], counts[small].sum())
    wanted = np.append(expected[~small], expected[small].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = max(1, len(wanted) - 1)
    spread = 2 / (9 * freedom)
    return float(((seen - wanted) ** 2 / wanted).sum()), freedom * (1 - spread + _Z * math.sqrt(spread)) ** 3


COMBINATIONS = [
    Sampling(),
    Sampling(temperature=0.3),
    Sampling(temperature=2.0),
    Sampling(top_k=1),
    Sampling(top_k=20, temperature=0.7, top_p=0.8),
    Sampling(top_k=20, temperature=1.0, top_p=0.95, presence_penalty=1.5),
    Sampling(top_p=0.5),
    Sampling(top_p=0.999, temperature=1.5),
    Sampling(min_p=0.05),
    Sampling(min_p=0.3, temperature=1.7),
    Sampling(min_p=0.02, top_k=30, top_p=0.9, temperature=1.2, presence_penalty=-1.0),
    Sampling(presence_penalty=2.0),
]


@pytest.mark.parametrize("settings", COMBINATIONS, ids=range(len(COMBINATIONS)))
def test_every_token_gets_exactly_its_share(settings: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that the pick gets, whose own tests show that it keeps to them."""
    logits, generated = some_logits(200), {3: 1, 50: 7, int(some_logits(200).argmax()): 2}
    found = shares(logits, draw(settings, generated=generated), monkeypatch)
    assert found == pytest.approx(exact(logits, settings, generated), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("settings", COMBINATIONS, ids=range(len(COMBINATIONS)))
def test_the_distribution_drawn_is_the_exact_one(settings: Sampling) -> None:
    logits, generated = some_logits(80, seed=7), {1: 3, 30: 1, int(some_logits(80, seed=7).argmax()): 1}
    tokens = [token(logits, draw(settings, index, generated=generated)) for index in range(4000)]
    probabilities = exact(logits, settings, generated)
    counts = np.bincount(tokens, minlength=80)
    assert not counts[probabilities == 0].any()
    statistic, limit = chi_square(counts, probabilities)
    assert statistic <= limit


def test_a_wrong_distribution_would_be_noticed() -> None:
    """The chi-square test has teeth: a temperature of 1.15 isn't 1."""
    logits = some_logits(80, seed=7)
    tokens = [token(logits, draw(Sampling(temperature=1.15), index)) for index in range(4000)]
    statistic, limit = chi_square(np.bincount(tokens, minlength=80), exact(logits, Sampling()))
    assert statistic > limit


def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed in float32, 248,319 tokens of 1.5e-8 each vanish beside a likely one: 0.4 % of all draws, never made."""
    logits = np.full(248_320, -18.0, np.float32)
    logits[0] = 0.0
    likely = 1 / (1 + 248_319 * math.exp(-18))
    for point in (likely + 1e-4, 0.998, 0.9999999):
        monkeypatch.setattr(chance, "uniform", lambda *_, point=point: point)
        share = (point - likely) / (1 - likely)
        assert token(logits, draw(Sampling())) == pytest.approx(1 + share * 248_319, abs=30)


# --- greedy ---


def test_temperature_zero_takes_the_first_of_the_highest() -> None:
    logits = np.array([1, 5, 2, 5], np.float32)
    assert token(logits, draw(Sampling(temperature=0.0, top_p=0.1, top_k=3, min_p=0.5))) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-40, 1e-6, 1e-5, 1e-4])
def test_a_tiny_temperature_is_greedy_and_divides_by_nothing(temperature: float) -> None:
    """1e-46 is 0 in float32: 0/0 is no number, and the token drawn was the vocabulary's last."""
    logits = some_logits(1000)
    assert token(logits, draw(Sampling(temperature=temperature, seed=3))) == int(logits.argmax())


def test_greedy_with_a_presence_penalty_moves_on() -> None:
    logits = np.array([1, 5, 4.5], np.float32)
    settings = Sampling(temperature=0.0, presence_penalty=1.0)
    assert token(logits, draw(settings)) == 1
    assert token(logits, draw(settings, generated={1: 1})) == 2
    assert token(logits, draw(settings, generated={1: 9, 2: 1})) == 1


def test_the_penalty_is_for_presence_not_for_each_time_and_leaves_the_row_alone() -> None:
    logits = np.array([0, 3, 1.5], np.float32)
    before = logits.copy()
    settings = Sampling(temperature=0.0, presence_penalty=1.0)
    assert token(logits, draw(settings, generated={1: 100})) == 1
    token(logits, draw(Sampling(top_k=2, top_p=0.5, min_p=0.1, presence_penalty=2.0), generated={1: 2}))
    assert np.array_equal(logits, before)


# --- degenerate rows (any NumPy warning fails the test) ---

HUGE = float(np.finfo(np.float32).max)
ROWS = {
    "one is possible": np.array([-np.inf] * 5 + [0.5] + [-np.inf] * 5, np.float32),
    "two are possible": np.array([-np.inf, 1.0, -np.inf, 1.0], np.float32),
    "all equal": np.zeros(300, np.float32),
    "huge": np.array([HUGE, -HUGE, 0, HUGE / 2], np.float32),
    "all huge": np.full(7, HUGE, np.float32),
    "all very negative": np.full(7, -HUGE, np.float32),
    "tiny differences": np.array([1, 1 + 1e-7, 1 - 1e-7], np.float32),
    "a single token": np.array([3.0], np.float32),
    "denormal": np.array([1e-42, 2e-42, 0], np.float32),
}


FILTERS = [
    {},
    {"top_k": 2},
    {"top_k": 1},
    {"top_p": 1e-9},
    {"top_p": 0.999999999},
    {"min_p": 1.0},
    {"min_p": 1e-9, "top_p": 0.5, "top_k": 3, "presence_penalty": 2.0},
]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5, 1e-3, 1.0, 2.0])
def test_a_degenerate_row_gives_a_possible_token(row: np.ndarray, temperature: float) -> None:
    for filters in FILTERS:
        settings = Sampling(temperature=temperature, **filters)
        for index in range(20):
            drawn = token(row, draw(settings, index, generated={0: 1}))
            assert row[drawn] > -np.inf


@pytest.mark.parametrize("top_p", [0.001, 0.3, 0.5, 0.999])
def test_a_flat_distribution_keeps_its_share_of_a_large_vocabulary(top_p: float) -> None:
    """The nucleus is looked for among the 64 highest first; here it holds up to 19,980."""
    logits = np.zeros(20_000, np.float32)
    settings = Sampling(top_p=top_p)
    tokens = {token(logits, draw(settings, index)) for index in range(200)}
    kept = nucleus(np.ones(20_000, np.float32), top_p)
    assert len(kept) == math.ceil(round(top_p * 20_000, 6))
    assert tokens <= set(kept.tolist())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_largest_random_number_draws_a_token_with_weight(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chance, "uniform", lambda *_: 1 - 2.0**-53)
    logits = some_logits(5000)
    logits[-100:] = -np.inf
    assert token(logits, draw(Sampling(temperature=temperature))) == 4899
    monkeypatch.setattr(chance, "uniform", lambda *_: 0.0)
    logits[:100] = -np.inf
    assert token(logits, draw(Sampling(temperature=temperature))) == 100


@pytest.mark.parametrize("count", [1, MOST_RACING, MOST_RACING + 1])
def test_only_those_with_weight_count_however_many_others_there_are(count: int) -> None:
    """The draw among few and that among many are different ones; which it is must not depend on how they came."""
    logits = some_logits(5000)
    left = np.sort(np.random.default_rng(count).permutation(5000)[:count])
    row = np.full(5000, -np.inf, np.float32)
    row[left] = logits[left]
    weights = np.exp(row[left] - row.max())
    low = np.where(row > -np.inf, row, np.float32(-80.0))
    for index in range(50):
        winner = left[pick(left, weights, draw(Sampling(), index))]
        assert token(row, draw(Sampling(), index)) == winner
        assert token(logits, replace(draw(Sampling(), index), matcher=FixedMask(left.tolist(), 5000))) == winner
        assert token(low, draw(Sampling(min_p=1e-9), index)) == winner


# --- random numbers ---


def test_the_same_seed_choice_and_index_draw_the_same_token() -> None:
    logits = some_logits(500)
    settings = Sampling(seed=11)
    assert len({token(logits, draw(settings, 4, choice=2)) for _ in range(5)}) == 1


def test_a_seed_draws_the_same_tokens_in_every_release() -> None:
    """Pinned, from few candidates and from many."""
    few, many = some_logits(300), some_logits(5000)
    settings = Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=42)
    assert [token(few, draw(settings, index)) for index in range(12)] == [
        201,
        273,
        273,
        124,
        273,
        273,
        124,
        273,
        273,
        183,
        183,
        273,
    ]
    assert [token(many, draw(Sampling(seed=42), index)) for index in range(12)] == [
        124,
        4498,
        4254,
        3284,
        3879,
        3888,
        3428,
        4912,
        4912,
        1829,
        4912,
        1823,
    ]
