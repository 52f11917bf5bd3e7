"""Tokens per second over the last seconds."""

import pytest

from forgelm.metrics.rates import WINDOW_SECONDS, Rates


def test_nothing_has_happened() -> None:
    assert Rates().read(10.0) == (0.0, 0.0)


def test_steady_work() -> None:
    rates = Rates()
    for step in range(1, 2001):
        rates.add(step * 0.01, 3, 8)
    prefill, decode = rates.read(20.0)
    assert prefill == pytest.approx(300, rel=0.1)
    assert decode == pytest.approx(800, rel=0.1)


def test_work_that_has_just_begun_isnt_spread_over_the_window() -> None:
    rates = Rates()
    for step in range(100):
        rates.add(100.0 + step * 0.01, 0, 1)
    assert rates.read(101.0)[1] == pytest.approx(100, rel=0.05)


def test_it_fades_when_nothing_runs() -> None:
    rates = Rates()
    for step in range(100):
        rates.add(100.0 + step * 0.01, 0, 1)
    assert 0 < rates.read(104.0)[1] < 30
    assert rates.read(101.0 + WINDOW_SECONDS) == (0.0, 0.0)


def test_it_keeps_no_more_than_the_window() -> None:
    rates = Rates()
    for step in range(100_000):
        rates.add(step * 0.01, 1, 1)
    assert len(rates._slices) < 20
