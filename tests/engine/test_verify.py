"""Which guesses stay: those that would have been drawn, grammar and all; and what is drawn is what would have been."""

import itertools

import numpy as np
import pytest

from forgelm.engine.plan import UNDECIDED, Draw, Drawn, MatchFailed, Span
from forgelm.engine.sampling import draw_token
from forgelm.engine.verify import verify
from forgelm.ipc.messages import Constraint, Sampling
from tests.engine.harness import Steps

PROMPT = [3, 4, 5]


def span(guesses: list[int], *, matcher: Steps | None = None, **fields) -> Span:
    """Two rows and guesses after them; nothing is generated yet."""
    ahead = np.array([*PROMPT, *guesses], np.int32)
    draw = Draw(Sampling(), 0, 0, ahead[:3], matcher=matcher, **fields)
    return Span(4, ahead[1:3], 1, draw, ahead[3:], ahead)


class Rows:
    """What each row says next, and what was asked of it."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.draws: list[Draw] = []

    def __call__(self, at: int, draw: Draw) -> Drawn:
        self.draws.append(draw)
        assert draw.tokens.tolist()[3:] == list(self.tokens[:at]), "a draw for another text"
        return Drawn(self.tokens[at], mu=draw.mu + 1)


@pytest.mark.parametrize(
    ("guesses", "rows", "tokens", "kept"),
    [
        ([], [10], [10], 2),
        ([10, 11, 12], [10, 11, 12, 13], [10, 11, 12, 13], 5),
        ([10, 11, 12], [10, 99, 12, 13], [10, 99], 3),
        ([10, 11, 12], [99, 11, 12, 13], [99], 2),
        ([10, 11, 12], [10, UNDECIDED, 12, 13], [10, UNDECIDED], 3),
        ([10, 11], [10, 11, -1], [10, 11, -1], 4),
    ],
)
def test_guesses_stay_up_to_the_first_that_is_not_drawn(
    guesses: list[int], rows: list[int], tokens: list[int], kept: int
) -> None:
    drawn, count = verify(span(guesses), Rows(*rows))
    assert ([each.token for each in drawn], count) == (tokens, kept)


def test_each_draw_is_the_one_that_would_have_come_later_anyway() -> None:
    rows = Rows(10, 11, 12)
    verify(span([10, 11], mu=3.0, banned=(7,), banned_until=2, logprobs=4, fixed=-1), rows)
    assert [draw.index for draw in rows.draws] == [0, 1, 2]
    assert [draw.banned for draw in rows.draws] == [(7,), (7,), ()]
    assert [draw.mu for draw in rows.draws] == [3.0, 4.0, 5.0]
    assert {draw.logprobs for draw in rows.draws} == {4}
    assert [draw.generated.tolist() for draw in rows.draws] == [[], [10], [10, 11]]


# --- along a grammar ---


def constrained(grammar: str, guesses: list[int], *rows: int, **fields) -> tuple[list[int], int, Steps]:
    steps = Steps(Constraint(grammar))
    drawn, kept = verify(span(guesses, matcher=steps, **fields), lambda at, _: Drawn(rows[at]))
    return [each.token for each in drawn], kept - 2, steps


def test_the_grammar_is_where_it_was_afterwards() -> None:
    tokens, kept, steps = constrained("10|20 11|21 12|22 *", [10, 11, 12], 10, 11, 22)
    assert (tokens, kept, steps.allowed()) == ([10, 11, 22], 2, {10, 20})


def test_what_a_grammar_forces_is_not_drawn() -> None:
    """The rows of 11 and 12 say otherwise, and aren't asked."""
    assert constrained("10|20 11 12 13|23 *", [10, 11, 12, 13], 10, 99, 99, 13, 14)[:2] == ([10, 13, 14], 4)


def test_a_guess_against_what_is_forced_ends_it() -> None:
    assert constrained("10|20 11 12 13|23 *", [10, 11, 99, 13], 10, 99, 99, 13)[:2] == ([10], 2)


def test_guesses_that_end_within_what_is_forced_all_stay() -> None:
    assert constrained("10|20 11 12 13|23 *", [10, 11], 10, 99, 99)[:2] == ([10], 2)


def test_with_log_probabilities_nothing_is_jumped_over() -> None:
    assert constrained("10|20 11 12 *", [10, 11, 12], 10, 11, 12, 40, logprobs=0)[:2] == ([10, 11, 12, 40], 3)


def test_nothing_follows_the_end_of_a_grammar() -> None:
    assert constrained("10|20 11|21", [10, 11, 12], 10, 11, 12)[:2] == ([10, 11], 2)


class Broken(Steps):
    """Fails when it is asked what is forced."""

    def forced(self) -> tuple[int, ...]:
        raise MatchFailed("no")


def test_a_grammar_that_fails_ends_it_where_it_fails() -> None:
    steps = Broken(Constraint("10|20 11|21 *"))
    drawn, kept = verify(span([10, 11], matcher=steps), lambda at, _: Drawn((10, 11, 12)[at]))
    assert ([each.token for each in drawn], kept, steps.allowed()) == ([10], 3, {10, 20})


# --- the distribution ---

VOCABULARY = 6


def logits_after(history: tuple[int, ...]) -> np.ndarray:
    """A made-up model whose distribution depends on the last two tokens."""
    rng = np.random.default_rng(abs(hash(history[-2:])) % 2**32)
    return rng.normal(scale=1.5, size=VOCABULARY).astype(np.float32)


def answer(seed: int, length: int, sampling: Sampling, guess: int, rng: np.random.Generator) -> list[int]:
    """An answer with `guess` random guesses at each step."""
    known, mu = list(PROMPT), 2 * sampling.mirostat_tau
    while len(known) < len(PROMPT) + length:
        guesses = rng.integers(0, VOCABULARY, guess).tolist()
        ahead = np.array([*known, *guesses], np.int32)
        draw = Draw(sampling, 0, len(known) - 3, ahead[: len(known)], mu=mu)
        rows = Span(0, ahead[len(known) - 1 : len(known)], len(known) - 1, draw, ahead[len(known) :], ahead)
        drawn, _ = verify(rows, lambda _, later: draw_token(logits_after(tuple(later.tokens.tolist())), later))
        known += [each.token for each in drawn]
        mu = drawn[-1].mu
    return known[3 : 3 + length]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.95, "top_k": 4, "presence_penalty": 1.5},
        {"temperature": 0.0},
        {"temperature": 0.8, "repetition_penalty": 1.3, "dry_multiplier": 0.8, "dry_allowed_length": 1},
        {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 1.5},
    ],
)
def test_the_answer_is_the_same_whatever_was_guessed(fields: dict) -> None:
    rng = np.random.default_rng(1)
    for seed in range(40):
        sampling = Sampling(seed=seed, **fields)
        alone = answer(seed, 24, sampling, 0, rng)
        for guess in (1, 3, 7):
            assert answer(seed, len(alone), sampling, guess, rng) == alone


def test_the_distribution_is_the_models_own() -> None:
    """Chi-square over the first two tokens, 36 pairs, with guesses at each step; 99.9 % quantile of 35 degrees."""
    rng, sampling = np.random.default_rng(2), Sampling(temperature=1.0)
    first = softmax(logits_after(tuple(PROMPT)))
    expected = np.array([first[a] * softmax(logits_after((*PROMPT, a))) for a in range(VOCABULARY)])
    counts, draws = np.zeros((VOCABULARY, VOCABULARY)), 8_000
    for seed in range(draws):
        one, two = answer(seed, 2, Sampling(temperature=sampling.temperature, seed=seed), 3, rng)
        counts[one, two] += 1
    statistic = ((counts - draws * expected) ** 2 / (draws * expected)).sum()
    assert statistic < 66.6
    assert all(counts[pair] for pair in itertools.product(range(VOCABULARY), repeat=2) if expected[pair] > 0.001)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
