"""The statistics against values worked out on paper."""

import math

import numpy as np
import pytest

from forgelm.bench.stats import Tally, divergence, log_softmax

EVEN = (0.25, 0.25, 0.25, 0.25)
SKEWED = (0.5, 0.25, 0.125, 0.125)


def logs(probabilities: tuple[float, ...]) -> np.ndarray:
    return np.log(np.array(probabilities, np.float64))


def test_log_softmax_of_logarithms_gives_them_back() -> None:
    assert log_softmax(logs(SKEWED).astype(np.float32)) == pytest.approx(logs(SKEWED), abs=1e-7)


def test_log_softmax_ignores_what_all_logits_share_and_does_not_overflow() -> None:
    found = log_softmax(np.array([1000.0, 1000.0 + math.log(3)], np.float32))
    assert np.exp(found) == pytest.approx([0.25, 0.75], abs=1e-4)


def test_divergence_is_not_symmetric() -> None:
    # ½ ln 2 + ¼ ln 1 + 2 · ⅛ ln ½ = ¼ ln 2, and ¼ ln ½ + ¼ ln 1 + 2 · ¼ ln 2 = ¼ ln 2: equal here by chance,
    # so a third distribution shows the direction.
    assert divergence(logs(SKEWED), logs(EVEN)) == pytest.approx(0.25 * math.log(2))
    assert divergence(logs(EVEN), logs(SKEWED)) == pytest.approx(0.25 * math.log(2))
    sharp = (0.75, 0.125, 0.0625, 0.0625)
    forth = 0.75 * math.log(3) + 0.125 * math.log(0.5) + 2 * 0.0625 * math.log(0.25)
    assert divergence(logs(sharp), logs(EVEN)) == pytest.approx(forth)
    assert divergence(logs(EVEN), logs(sharp)) == pytest.approx(
        0.25 * (math.log(1 / 3) + math.log(2) + 2 * math.log(4))
    )


def test_a_distribution_does_not_diverge_from_itself() -> None:
    assert divergence(logs(SKEWED), logs(SKEWED)) == 0.0


def test_a_tally_of_two_rows() -> None:
    tally = Tally()
    other = (0.125, 0.5, 0.25, 0.125)
    tally.add(logs(SKEWED), logs(SKEWED), token=0)  # same likeliest token; the text goes on with one of probability ½
    tally.add(logs(SKEWED), logs(other), token=3)  # another likeliest token; probability ⅛
    quality = tally.quality("q8_0")
    second = 0.5 * math.log(4) + 0.25 * math.log(0.5) + 0.125 * math.log(0.5)
    assert (quality.kv_type, quality.rows, quality.same_top) == ("q8_0", 2, 0.5)
    assert quality.kl_mean == pytest.approx(second / 2)
    assert quality.kl_p99 == pytest.approx(0.99 * second)  # linear between the two rows
    assert quality.perplexity == pytest.approx(4.0)  # √(2 · 8)


def test_the_99th_percentile_of_a_hundred_and_one_rows_is_the_last_but_one() -> None:
    tally = Tally()
    for row in range(101):
        share = 0.5 + row / 1000
        tally.add(logs((0.5, 0.5)), logs((share, 1 - share)), token=0)
    assert tally.quality("q4_0").kl_p99 == pytest.approx(0.5 * math.log(0.25 / (0.599 * 0.401)))
