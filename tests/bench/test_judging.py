"""Judging candidates by pairs: noise is no gain, a loss on one figure is a loss, hopeless ones are seen early."""

import random
from statistics import NormalDist

import pytest

from forgelm.bench.judging import Judgement, Merit, hopeless, judge

DECODE = Merit("decode", higher_is_better=True)
TTFT = Merit("ttft", higher_is_better=False)
BOTH = (DECODE, TTFT)


def verdict(decode: list[float], ttft: list[float] | None = None) -> Judgement:
    """Candidates with these figures against an incumbent that always has 100 tok/s and 1 s."""
    latencies = ttft or [1.0] * len(decode)
    ours = [{"decode": rate, "ttft": latency} for rate, latency in zip(decode, latencies, strict=True)]
    return judge(BOTH, ours, [{"decode": 100.0, "ttft": 1.0}] * len(decode))


def test_a_gain_beyond_the_noise_is_better() -> None:
    found = verdict([108, 111, 109, 112, 110, 110, 111, 109])
    assert found.better
    assert found.ratios["decode"].median == pytest.approx(1.1)
    assert found.score.median == pytest.approx(1.1**0.5)


def test_less_time_is_better() -> None:
    found = verdict([100.0] * 8, [0.5] * 8)
    assert found.better
    assert found.ratios["ttft"].median == pytest.approx(2)


def test_worse_on_another_figure_is_refused_however_large_the_gain() -> None:
    found = verdict([200.0] * 8, [1.1] * 8)
    assert not found.better
    assert found.why == "worse on ttft by 9.1%"


def test_a_loss_that_the_noise_hides_is_refused_where_it_is_seen() -> None:
    """One pair in eight says the opposite, so the interval can't exclude that nothing is lost."""
    found = verdict([150.0] * 8, [1.2, 1.06, 1.05, 0.7, 1.3, 0.6, 1.07, 1.05])
    assert not found.better
    assert found.why.endswith("as far as noise lets see")
    assert found.unsure


def test_a_loss_below_one_percent_is_none() -> None:
    assert verdict([110.0] * 8, [1.005] * 8).better


def test_a_gain_below_one_percent_is_none() -> None:
    found = verdict([100.8] * 8)
    assert (found.better, found.why) == (False, "better by less than 1%")


def test_five_pairs_are_too_few() -> None:
    assert verdict([150.0] * 5).why == "too few pairs to tell (5)"
    assert verdict([150.0] * 6).better


def test_one_outlier_in_nine_ruins_nothing() -> None:
    """Somebody else's work on a shared machine makes one pair eight times slower."""
    assert verdict([110, 111, 112, 12, 109, 110, 113, 110, 111]).better


def test_weights_decide_between_figures() -> None:
    ours, theirs = [{"decode": 105.0, "ttft": 1.0}] * 8, [{"decode": 100.0, "ttft": 1.0}] * 8
    heavy = judge((Merit("decode", True, 9.0), TTFT), ours, theirs)
    light = judge((Merit("decode", True, 1.0), Merit("ttft", False, 9.0)), ours, theirs)
    assert heavy.score.median == pytest.approx(1.05**0.9)
    assert light.score.median == pytest.approx(1.05**0.1)
    assert (heavy.better, light.better) == (True, False)


def test_a_figure_that_nobody_has_counts_for_nothing() -> None:
    found = judge((DECODE, Merit("memory", False)), [{"decode": 110.0}] * 6, [{"decode": 100.0}] * 6)
    assert found.better
    assert found.ratios["memory"].pairs == 0


def test_noise_is_not_taken_for_gain() -> None:
    """Equal candidates under 10 % of noise: about one in forty passes a 95 % interval by chance, and no more."""
    noise = NormalDist(0, 0.1)
    chance = random.Random(7)
    passed = 0
    for _ in range(400):
        rates = [100 * (1 + noise.inv_cdf(chance.random())) for _ in range(16)]
        ours, theirs = [{"decode": rate} for rate in rates[:8]], [{"decode": rate} for rate in rates[8:]]
        passed += judge((DECODE,), ours, theirs).better
    assert passed <= 20


def test_a_true_gain_is_found_under_noise() -> None:
    noise = NormalDist(0, 0.03)
    chance = random.Random(7)
    passed = 0
    for _ in range(100):
        rates = [100 * (1 + noise.inv_cdf(chance.random())) for _ in range(16)]
        ours, theirs = [{"decode": 1.15 * rate} for rate in rates[:8]], [{"decode": rate} for rate in rates[8:]]
        passed += judge((DECODE,), ours, theirs).better
    assert passed >= 95


@pytest.mark.parametrize(
    ("decode", "ttft", "said"),
    [
        ([80.0, 81.0], [1.0, 1.0], "worse in each of 2 pairs"),
        ([80.0, 120.0], [1.0, 1.0], ""),
        ([80.0], [1.0], ""),
        ([99.0, 101.0, 98.0, 99.0], [1.0] * 4, "not better in 4 pairs"),
        ([150.0] * 4, [1.2] * 4, "worse on ttft in each of 4 pairs"),
        ([150.0] * 4, [1.0] * 4, ""),
        ([], [], ""),
    ],
)
def test_what_is_hopeless(decode: list[float], ttft: list[float], said: str) -> None:
    ours = [{"decode": rate, "ttft": latency} for rate, latency in zip(decode, ttft, strict=True)]
    found = hopeless(BOTH, ours, [{"decode": 100.0, "ttft": 1.0}] * len(decode))
    assert found.startswith(said)
    assert bool(found) == bool(said)
