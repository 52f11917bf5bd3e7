"""Bytes per second over the last seconds, on a clock that is moved by hand."""

from forgelm.registry.progress import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def metered() -> tuple[Meter, Clock]:
    clock = Clock()
    return Meter(clock), clock


def test_nothing_has_no_rate() -> None:
    meter, clock = metered()
    assert meter.rate == 0.0
    meter.update(1000)
    assert meter.rate == 0.0
    clock.now += 1
    assert meter.rate == 0.0


def test_what_was_here_before_counts_for_nothing() -> None:
    meter, clock = metered()
    meter.update(1_000_000)
    clock.now += 2
    meter.update(1_000_200)
    assert meter.rate == 100.0


def test_only_the_last_seconds_count() -> None:
    meter, clock = metered()
    for count in range(0, 1000, 10):
        meter.update(count)
        clock.now += 0.5
    assert 18 <= meter.rate <= 20
    for count in range(1000, 20_000, 1000):
        meter.update(count)
        clock.now += 0.5
    assert 1800 <= meter.rate <= 2000


def test_a_rate_falls_to_nothing_when_nothing_comes() -> None:
    meter, clock = metered()
    meter.update(0)
    clock.now += 1
    meter.update(1000)
    rates = []
    for _ in range(12):
        rates.append(meter.rate)
        clock.now += 0.5
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (1000.0, 0.0)
    meter.update(1000)
    assert meter.rate == 0.0


def test_beginning_again_is_no_negative_rate() -> None:
    meter, clock = metered()
    meter.update(5000)
    clock.now += 1
    meter.update(0)
    clock.now += 1
    meter.update(300)
    assert meter.rate == 300.0


def test_what_is_left_at_this_pace() -> None:
    meter, clock = metered()
    assert meter.pace(100) == (0.0, None)
    meter.update(0)
    clock.now += 1.0
    meter.update(300)
    assert meter.pace(100) == (300.0, 0.3)
