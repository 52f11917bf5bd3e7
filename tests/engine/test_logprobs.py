"""Log-probabilities against a softmax in float64."""

import math

import numpy as np
import pytest

from forgelm.engine.plan import Draw
from forgelm.engine.sampling import draw_token
from forgelm.ipc.messages import Sampling, TokenLogprobs
from tests.engine.test_sampling import some_logits


@pytest.mark.parametrize("alternatives", [0, 1, 5, 20])
@pytest.mark.parametrize("extra", [{}, {"temperature": 0.0}, {"top_k": 20, "presence_penalty": 2.0}, {"mirostat": 2}])
def test_log_probabilities_are_those_of_the_row_as_it_came(alternatives: int, extra: dict) -> None:
    for seed in range(10):
        logits = some_logits(30_000, seed, spread=3.0)
        how = Sampling(logit_bias=((5, 9.0),), seed=seed, **extra)
        drawn = draw_token(
            logits, Draw(how, 0, 3, np.array([1, 2, 3], np.int32), banned=(8,), logprobs=alternatives, mu=10.0)
        )
        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact).sum())
        assert drawn.logprobs is not None
        assert drawn.logprobs.logprob == pytest.approx(exact[drawn.token], abs=1e-5)
        ids = np.lexsort((np.arange(30_000), -exact))[:alternatives]
        assert [id for id, _ in drawn.logprobs.top] == ids.tolist()
        assert [value for _, value in drawn.logprobs.top] == pytest.approx(exact[ids], abs=1e-5)


def test_log_probabilities_of_ties_and_impossible_tokens() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[900, 3, 500]] = 2.0
    draw = Draw(Sampling(), 0, 0, np.zeros(1, np.int32), fixed=500, logprobs=20)
    third = pytest.approx(math.log(1 / 3), abs=1e-6)
    assert draw_token(logits, draw).logprobs == TokenLogprobs(third, ((3, third), (500, third), (900, third)))
    draw = Draw(Sampling(), 0, 0, np.zeros(1, np.int32), fixed=4, logprobs=1)
    assert draw_token(logits, draw).logprobs == TokenLogprobs(-math.inf, ((3, third),))


def test_the_small_probabilities_of_a_large_vocabulary_count() -> None:
    """248,319 tokens of 1.5e-8 are 0.4 %; a sum in float32 gets it wrong in the eighth digit."""
    logits = np.full(248_320, -18.0, np.float32)
    logits[0] = 0.0
    drawn = draw_token(logits, Draw(Sampling(temperature=0.0), 0, 0, np.zeros(1, np.int32), logprobs=0))
    assert drawn.logprobs == TokenLogprobs(pytest.approx(-math.log1p(248_319 * math.exp(-18)), abs=1e-9), ())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_highest_number_makes_all_impossible(value: float) -> None:
    draw = Draw(Sampling(), 0, 0, np.zeros(1, np.int32), fixed=4, logprobs=3)
    assert draw_token(np.full(1000, value, np.float32), draw).logprobs == TokenLogprobs(-math.inf, ())
