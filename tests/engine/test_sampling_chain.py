"""Whole chains of samplers against the slow ones: each token gets exactly its share, on the whole row, under a grammar,
and from the highest logits alone."""

import random

import numpy as np
import pytest

from forgelm.engine import sampling
from forgelm.engine.chance import uniform
from forgelm.engine.plan import Draw, Drawn
from forgelm.engine.sampling import draw_candidates, draw_token
from forgelm.ipc.messages import Sampling
from tests.engine.picks import shares
from tests.engine.slow_sampling import FixedMask, distribution
from tests.engine.test_sampling import chi_square, some_logits

VOCABULARY = 300


def text(seed: int, length: int = 60) -> np.ndarray:
    """Tokens with repetitions, half of them likely ones of `some_logits(VOCABULARY, seed)`."""
    rng = random.Random(seed)
    best = np.argsort(-some_logits(VOCABULARY, seed))[:20].tolist()
    words = [
        [rng.choice(best) if rng.random() < 0.5 else rng.randrange(VOCABULARY) for _ in range(5)] for _ in range(4)
    ]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += rng.choice(words)
    return np.array(tokens[:length], np.int32)


def settings(seed: int) -> Sampling:
    """Every sampler now and then, with values from its whole range."""
    rng = random.Random(seed)

    def some(*values: float) -> float:
        return values[0] if rng.random() < 0.6 else rng.choice(values[1:])

    return Sampling(
        temperature=some(1.0, 0.0, 0.4, 0.7, 1.6),
        top_k=int(some(20, 0, 1, 2, 5, 60, 299, 300, 5000)),
        top_p=some(1.0, 0.1, 0.5, 0.8, 0.95),
        min_p=some(0.0, 0.02, 0.2, 0.9),
        presence_penalty=some(0.0, -2.0, 1.5, 2.0),
        frequency_penalty=some(0.0, -0.5, 0.3, 2.0),
        repetition_penalty=some(1.0, 0.5, 1.1, 2.0),
        penalty_window=int(some(0, -1, 5, 64)),
        typical_p=some(1.0, 0.2, 0.5, 0.9),
        top_n_sigma=some(0.0, 0.5, 1.0, 2.0),
        xtc_probability=some(0.0, 0.5, 1.0),
        xtc_threshold=some(0.1, 0.01, 0.3, 0.5, 0.7),
        dry_multiplier=some(0.0, 0.3, 0.8),
        dry_base=some(1.75, 1.0, 1.1, 3.0),
        dry_allowed_length=int(some(2, 1, 4)),
        dry_window=int(some(-1, 0, 20)),
        dry_breakers=text(seed)[:1].tobytes() if rng.random() < 0.3 else b"",
        logit_bias=((7, 3.0), (int(text(seed)[3]), -1.5), (7, 1.0)) if rng.random() < 0.2 else (),
    )


def some_draw(seed: int, how: Sampling, allowed: list[int] | None = None) -> Draw:
    rng = random.Random(seed + 1)
    banned = tuple(text(seed)[:2].tolist()) if rng.random() < 0.2 else ()
    matcher = None if allowed is None else FixedMask(allowed, VOCABULARY)
    return Draw(how, 0, rng.choice([0, 5, 40]), text(seed), banned=banned, matcher=matcher)


def check(logits: np.ndarray, how: Draw, allowed: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = logits.copy()
    for acts in (False, True) if 0 < how.sampling.xtc_probability < 1 else (how.sampling.xtc_probability == 1,):
        monkeypatch.setattr(sampling, "uniform", lambda *_, number=0.0 if acts else 1 - 2**-53: number)
        wanted = np.zeros(len(logits))
        for token, probability in distribution(logits, how, allowed, xtc=acts).items():
            wanted[token] = probability
        assert shares(logits, how, monkeypatch) == pytest.approx(wanted, rel=1e-4, abs=1e-9), how
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("seed", range(150))
def test_any_chain_draws_each_token_as_often_as_the_slow_one_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(some_logits(VOCABULARY, seed), some_draw(seed, settings(seed)), None, monkeypatch)


@pytest.mark.parametrize("seed", range(60))
def test_a_grammar_leaves_the_chain_what_it_allows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens, which are gathered, or many, where the others are struck out; likely ones forbidden as well."""
    rng = random.Random(seed)
    logits, share = some_logits(VOCABULARY, seed), rng.choice([0.03, 0.03, 0.3, 0.9])
    allowed = [token for token in range(VOCABULARY) if rng.random() < share] or [299]
    how = some_draw(seed, settings(1000 + seed), allowed)
    if not set(allowed) - set(how.banned):
        assert draw_token(logits, how).problem == sampling.NOTHING_LEFT
    else:
        check(logits, how, allowed, monkeypatch)


@pytest.mark.parametrize("seed", range(40))
def test_in_a_large_vocabulary_the_highest_logits_stand_for_the_row(seed: int) -> None:
    """A row long enough to be searched by blocks and drawn from in part, against the slow chain's support."""
    rng = random.Random(seed)
    logits = some_logits(3000, seed)
    allowed = [token for token in range(3000) if rng.random() < 0.7]
    how = Sampling(top_k=5, presence_penalty=1.5, temperature=rng.choice([0.0, 1.0]), top_p=0.9)
    tokens = np.argsort(-logits)[:8].astype(np.int32)
    matcher = FixedMask(allowed, 3000)
    wanted = distribution(logits, Draw(how, 0, 8, tokens), allowed)
    drawn = {draw_token(logits, Draw(how, choice, 8, tokens, matcher=matcher)).token for choice in range(400)}
    assert drawn <= set(wanted)
    assert {token for token, probability in wanted.items() if probability > 0.05} <= drawn


CHAINS = {
    "plain": Sampling(top_k=64),
    "top-k and top-p": Sampling(temperature=0.7, top_k=20, top_p=0.8),
    "presence": Sampling(top_k=20, top_p=0.95, presence_penalty=1.5),
    "XTC": Sampling(top_k=40, xtc_probability=0.5, xtc_threshold=0.08),
    "typical": Sampling(top_k=50, typical_p=0.7),
    "whole row": Sampling(top_p=0.9, frequency_penalty=0.4, repetition_penalty=1.1),
}
DRAWS = 20_000


@pytest.mark.parametrize("how", CHAINS.values(), ids=CHAINS.keys())
def test_the_distribution_drawn_is_the_exact_one(how: Sampling) -> None:
    """With the real random numbers, whether the whole row is there or its 128 highest logits."""
    logits = some_logits(VOCABULARY, 5)
    ids = np.argsort(-logits)[:128].astype(np.int32)
    drawn, from_highest = [], []
    for choice in range(DRAWS):
        draw = Draw(how, choice, 40, text(5))
        drawn.append(draw_token(logits, draw))
        if how.top_k:
            from_highest.append(draw_candidates(ids, logits[ids], draw))
    exact = np.zeros(VOCABULARY)
    chance = how.xtc_probability
    for acts, share in ((False, 1 - chance), (True, chance)):
        for token, probability in distribution(logits, Draw(how, 0, 40, text(5)), xtc=acts).items():
            exact[token] += share * probability
    for results in filter(None, (drawn, from_highest)):
        found = np.bincount([result.token for result in results if result], minlength=VOCABULARY)
        assert found.sum() == DRAWS
        assert not found[exact == 0].any()
        statistic, limit = chi_square(found, exact)
        assert statistic <= limit
    assert not how.top_k or drawn == from_highest


def test_whether_xtc_acts_has_nothing_to_do_with_the_draw() -> None:
    """Were it the same number, XTC would act on the tokens at the beginning of the order alone."""
    numbers = np.array([[uniform(3, 0, index), uniform(3, 0, index, b"xtc")] for index in range(20_000)])
    cells = (numbers * 8).astype(int)
    statistic, limit = chi_square(np.bincount(cells[:, 0] * 8 + cells[:, 1], minlength=64), np.full(64, 1 / 64))
    assert statistic <= limit


def test_a_fixed_token_follows_whatever_the_logits_say() -> None:
    logits = np.full(VOCABULARY, np.nan, np.float32)
    how = Draw(Sampling(mirostat=2), 0, 40, text(5), fixed=17, banned=(17,), mu=3.5)
    assert draw_token(logits, how) == Drawn(17, mu=3.5)
    how = Draw(Sampling(top_k=5), 0, 40, text(5), fixed=17)
    assert draw_candidates(np.arange(64, dtype=np.int32), logits[:64], how) == Drawn(17)


# --- nothing to draw ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("extra", [{}, {"top_k": 3}, {"mirostat": 1}, {"mirostat": 2}, {"top_n_sigma": 1.0}])
@pytest.mark.parametrize("allowed", [[], [4, 5], list(range(100))])
def test_where_nothing_is_left_there_is_no_token(temperature: float, extra: dict, allowed: list[int]) -> None:
    logits = some_logits(100)
    logits[6:] = -np.inf
    how = Sampling(temperature=temperature, logit_bias=((4, -np.inf),), **extra)
    draw = Draw(how, 0, 0, text(1), banned=(0, 1, 2, 3, 5), matcher=FixedMask(allowed, 100), mu=10.0, logprobs=2)
    assert draw_token(logits, draw) == Drawn(-1, mu=10.0, problem=sampling.NOTHING_LEFT)


def test_a_failed_grammar_says_so() -> None:
    draw = Draw(Sampling(), 0, 0, text(1), matcher=FixedMask([], 100, failure="too deep"))
    assert draw_token(some_logits(100), draw) == Drawn(-1, problem="too deep")


NO_NUMBERS = [{}, {"top_k": 3}, {"temperature": 0.0}, {"mirostat": 2}, {"presence_penalty": 1.0}, {"top_n_sigma": 1.0}]


@pytest.mark.parametrize("row", [np.full(900, np.nan), np.full(900, np.inf)], ids=["nan", "inf"])
@pytest.mark.parametrize("extra", NO_NUMBERS)
def test_logits_that_are_no_numbers_give_no_token(row: np.ndarray, extra: dict) -> None:
    drawn = draw_token(row.astype(np.float32), Draw(Sampling(**extra), 0, 3, np.array([1, 2, 3], np.int32)))
    assert drawn.token == -1
    assert drawn.problem in (sampling.NOT_NUMBERS, sampling.NOTHING_LEFT)


def test_greedy_under_a_grammar_takes_the_first_of_the_highest_allowed() -> None:
    logits = np.array([1, 5, 2, 5, 4, 4] + [0] * 60, np.float32)
    for allowed, wanted in (([0, 1, 3], 1), ([3, 4], 3), ([5, 4, 2], 4), (list(range(4, 66)), 4), ([65], 65)):
        draw = Draw(Sampling(temperature=0.0), 0, 0, text(1), matcher=FixedMask(allowed, 66))
        assert draw_token(logits, draw).token == wanted
