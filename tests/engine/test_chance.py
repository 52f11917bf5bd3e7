"""Random numbers, and the pick by weight: exact, whatever the order, and the same in every release."""

import math

import numpy as np
import pytest

from forgelm.engine import chance
from forgelm.engine.chance import MOST_RACING, pick, token_uniforms, uniform
from forgelm.engine.plan import NO_TOKENS, Draw
from forgelm.ipc.messages import Sampling
from tests.engine.test_sampling import chi_square

VOCABULARY = 248_320
UNMIXED_ONES = 0xCF9A04AFFA6BADC0
"""What SplitMix64's mixer turns into 64 ones."""


def place(seed: int = 0, choice: int = 0, index: int = 0) -> Draw:
    return Draw(Sampling(seed=seed), choice, index, NO_TOKENS)


def some_ids(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).permutation(VOCABULARY)[:count]


# --- the numbers ---


def test_another_seed_choice_or_index_is_another_number() -> None:
    numbers = {uniform(seed, choice, index) for seed in (0, 1, 2**63, -1) for choice in range(5) for index in range(50)}
    assert len(numbers) == 4 * 5 * 50


PINNED = [
    [0.7007829287846815, 0.024899465159546108, 0.3367615102983509, 0.08688534368926948, 0.693938565084767],
    [0.27736137147871853, 0.8847064438847884, 0.32862858967651143, 0.5665524987376457, 0.5717583711078437],
]


def test_random_numbers_never_change() -> None:
    """Pinned: the same seed gives the same text in the next release too."""
    numbers = [uniform(0, 0, 0), uniform(1, 0, 0), uniform(-1, 3, 70_000)]
    assert numbers == [0.0564663990004608, 0.6487508310490744, 0.29985748175561355]
    tokens = np.array([0, 1, 17, 151_643, VOCABULARY - 1])
    assert token_uniforms(0, 0, 0, tokens).tolist() == PINNED[0]
    assert token_uniforms(-1, 3, 70_000, tokens).tolist() == PINNED[1]


def splitmix(state: int) -> int:
    """The output function of SplitMix64, as its authors give it."""
    state &= 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return state ^ (state >> 31)


def test_a_token_s_number_is_from_the_splitmix_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence of seed 0 begins with 0xE220A8397B1DCDAF; Java's SplittableRandom has the same."""
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    ids = some_ids(50)
    for begin in (0, 1, 0xFEDCBA9876543210, 2**64 - 1):
        monkeypatch.setattr(chance, "_hash", lambda *_, begin=begin: begin)
        exact = [(2 * (splitmix(begin + id * 0x9E3779B97F4A7C15) >> 12) + 1) / 2**53 for id in ids.tolist()]
        assert token_uniforms(0, 0, 0, ids).tolist() == exact


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_no_number_of_a_token_is_0_or_1(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its logarithm is finite and not 0."""
    begin = UNMIXED_ONES if bits else 0
    assert splitmix(begin) == bits
    monkeypatch.setattr(chance, "_hash", lambda *_: begin)
    number = token_uniforms(0, 0, 0, np.array([0]))[0]
    assert number == (1 - 2.0**-53 if bits else 2.0**-53)
    assert pick(np.array([0]), np.ones(1, np.float32), place()) == 0


def test_a_token_s_number_is_its_own_whatever_else_is_there() -> None:
    ids = some_ids(900)
    every = token_uniforms(3, 1, 4, np.arange(VOCABULARY))
    assert np.array_equal(token_uniforms(3, 1, 4, ids), every[ids])
    assert len(set(every.tolist())) == VOCABULARY


TOKEN = np.array([151_643])
STREAMS = {
    "by index": lambda n: [uniform(7, 0, index) for index in range(n)],
    "by seed": lambda n: [uniform(seed, 0, 0) for seed in range(n)],
    "by choice": lambda n: [uniform(1, choice, 5) for choice in range(n)],
    "a token's by index": lambda n: [token_uniforms(7, 0, index, TOKEN)[0] for index in range(n)],
    "a token's by seed": lambda n: [token_uniforms(seed, 0, 0, TOKEN)[0] for seed in range(n)],
    "a token's by choice": lambda n: [token_uniforms(1, choice, 5, TOKEN)[0] for choice in range(n)],
    "by token": lambda n: token_uniforms(5, 0, 9, np.arange(n)),
    "by token, one in 1,024": lambda n: token_uniforms(5, 0, 9, np.arange(n) * 1024),
    "a draw's and a token's": lambda n: np.array(
        [(uniform(2, 0, at), token_uniforms(2, 0, at, TOKEN)[0]) for at in range(n // 2)]
    ).ravel(),
    "XTC's and a token's": lambda n: np.array(
        [(uniform(2, 0, at, b"xtc"), token_uniforms(2, 0, at, TOKEN)[0]) for at in range(n // 2)]
    ).ravel(),
    "two tokens'": lambda n: np.array([token_uniforms(2, 0, at, np.array([12, 13])) for at in range(n // 2)]).ravel(),
}


@pytest.mark.parametrize("numbers", STREAMS.values(), ids=STREAMS.keys())
def test_random_numbers_are_uniform_and_independent(numbers) -> None:
    values = np.array(numbers(20_000))
    assert values.min() >= 0
    assert values.max() < 1
    statistic, limit = chi_square(np.bincount((values * 64).astype(int), minlength=64), np.full(64, 1 / 64))
    assert statistic <= limit
    pairs = (values[:-1] * 8).astype(int) * 8 + (values[1:] * 8).astype(int)
    statistic, limit = chi_square(np.bincount(pairs[::2], minlength=64), np.full(64, 1 / 64))
    assert statistic <= limit


# --- the race ---

POOLS = {
    "two": [3.0, 1.0],
    "equal": [1.0] * 16,
    "falling": [0.8**rank for rank in range(40)],
    "one likely": [1.0] + [0.002] * 200,
    "as many as race": [1.0 / (1 + rank) for rank in range(MOST_RACING)],
    "some without weight": [1.0, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0],
    "tiny": [1e-38, 2e-38, 5e-39, 1e-45],
    "huge": [1e38, 3e38, 2e38],
}
DRAWS = 8000
WAYS = {
    "by index": lambda at: place(5, 0, at),
    "by seed": lambda at: place(at, 0, 3),
    "by choice": lambda at: place(5, at, 0),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
def test_each_is_drawn_in_proportion_to_its_weight(pool: list[float], way) -> None:
    weights, ids = np.array(pool, np.float32), some_ids(len(pool))
    counts = np.bincount([pick(ids, weights, way(at)) for at in range(DRAWS)], minlength=len(pool))
    exact = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    assert not counts[exact == 0].any()
    statistic, limit = chi_square(counts, exact)
    assert statistic <= limit


def test_a_wrong_weight_would_be_noticed() -> None:
    """The chi-square test has teeth: 1.15 to one isn't one to one."""
    weights, ids = np.array([1.15] + [1.0] * 7, np.float32), some_ids(8)
    counts = np.bincount([pick(ids, weights, place(index=at)) for at in range(4 * DRAWS)], minlength=8)
    statistic, limit = chi_square(counts, np.full(8, 1 / 8))
    assert statistic > limit


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_one_draw_tells_nothing_about_the_next(way) -> None:
    """64 pairs of eight equal tokens, each as often as any other."""
    weights, ids = np.ones(8, np.float32), some_ids(8)
    drawn = np.array([pick(ids, weights, way(at)) for at in range(4 * DRAWS)])
    statistic, limit = chi_square(np.bincount(drawn[::2] * 8 + drawn[1::2], minlength=64), np.full(64, 1 / 64))
    assert statistic <= limit


def test_the_first_to_arrive_is_drawn() -> None:
    """Against plain Python: waiting times, one after the other."""
    rng = np.random.default_rng(1)
    for index in range(500):
        count = int(rng.choice([1, 2, 5, 60, MOST_RACING]))
        ids, weights = some_ids(count, index), np.exp(-rng.random(count) * 30).astype(np.float32)
        times = [
            -math.log(number) / weight
            for number, weight in zip(token_uniforms(8, 2, index, ids).tolist(), weights.tolist(), strict=True)
        ]
        assert pick(ids, weights, place(8, 2, index)) == times.index(min(times))


def test_neither_order_nor_losers_make_a_difference() -> None:
    rng = np.random.default_rng(2)
    for index in range(300):
        ids, weights = some_ids(50, index), np.exp(-rng.random(50) * 6).astype(np.float32)
        winner = ids[pick(ids, weights, place(index=index))]
        shuffled = rng.permutation(50)
        assert ids[shuffled][pick(ids[shuffled], weights[shuffled], place(index=index))] == winner
        some = (rng.random(50) < 0.5) | (ids == winner)
        assert ids[some][pick(ids[some], weights[some], place(index=index))] == winner
        assert ids[pick(ids, weights * np.float32(2.0**-40), place(index=index))] == winner
        assert ids[pick(ids, np.where(some, weights, np.float32(0.0)), place(index=index))] == winner


def test_all_but_impossible_tokens_are_not_drawn() -> None:
    """1,023 tokens beside one that is 1e30 or 1e15 times as likely: not once in 1,000 draws."""
    for likely, others in ((1.0, 1e-30), (1e-30, 1e-45)):
        weights = np.full(MOST_RACING, others, np.float32)
        weights[77] = likely
        assert {pick(None, weights, place(index=at)) for at in range(1000)} == {77}
    assert {pick(np.array([5]), np.ones(1, np.float32), place(index=at)) for at in range(50)} == {0}
    assert {pick(None, np.array([0, 1e-45, 0], np.float32), place(index=at)) for at in range(50)} == {1}


# --- where too many are left for a race ---


@pytest.mark.parametrize("count", [MOST_RACING + 1, 3000])
def test_of_many_each_gets_exactly_its_share_of_the_numbers(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spaced instead of random numbers make this exact: a count may be off by the edges of its interval."""
    weights, points = np.random.default_rng(3).random(count).astype(np.float32), 20_000
    weights[::7] = 0.0
    monkeypatch.setattr(chance, "uniform", lambda seed, choice, index: (index + 0.5) / points)
    found = np.bincount([pick(None, weights, place(index=at)) for at in range(points)], minlength=count)
    assert not found[weights == 0].any()
    assert np.abs(found - points * weights / weights.sum(dtype=np.float64)).max() <= 1.01


def test_of_many_one_number_draws_and_of_fewer_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "uniform", lambda *_: 0.0)
    assert {pick(None, np.ones(MOST_RACING + 1, np.float32), place(index=at)) for at in range(50)} == {0}
    assert len({pick(None, np.ones(MOST_RACING, np.float32), place(index=at)) for at in range(50)}) > 40
