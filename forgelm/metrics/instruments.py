"""Counters, gauges and histograms for one thread, and the book that they are read from.

prometheus-client's own take 1 to 2 µs per observation, most of it for locks and children; these are written by the
event loop alone and take a fifth of that. How they are spelled out for scrapers is prometheus-client's business.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]


class Instrument(Protocol):
    """Something that the book can spell out."""

    def family(self) -> Metric:
        """Its present values."""


class Count:
    """One series that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Add `by`, which is never negative."""
        self.value += by


class Counter:
    """Counts by label values; a series is there from the first time that it is asked for."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self._about = name, text
        self._names = labels
        self._series: dict[Labels, Count] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> Count:
        """The series of these label values."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Count()
        return found

    def inc(self, by: float = 1.0) -> None:
        """Add to the one series of a counter without labels."""
        self._series[()].value += by

    def items(self) -> Iterator[tuple[Labels, float]]:
        """All series with their values."""
        return ((values, count.value) for values, count in self._series.items())

    @property
    def total(self) -> float:
        """Of all series."""
        return sum(count.value for count in self._series.values())

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(*self._about, labels=self._names)
        for values, value in self.items():
            family.add_metric(values, value)
        return family


class Gauge:
    """Values that are read when somebody looks; those that nobody provides aren't shown."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self._about = name, text
        self._names = labels
        self._sources: dict[Labels, Callable[[], float]] = {}
        self._all: Callable[[], Samples] = tuple

    def read_from(self, source: Callable[[], float], *values: str) -> None:
        """Take the value of the series with these label values from `source` from now on."""
        self._sources[values] = source

    def read_all_from(self, source: Callable[[], Samples]) -> None:
        """Take whole series from `source`, which may come and go."""
        self._all = source

    def items(self) -> Iterator[tuple[Labels, float]]:
        """All series with their values."""
        yield from ((values, source()) for values, source in self._sources.items())
        yield from self._all()

    def family(self) -> Metric:
        family = GaugeMetricFamily(*self._about, labels=self._names)
        for values, value in self.items():
            family.add_metric(values, value)
        return family


class ReadCounter(Gauge):
    """A counter that somebody else keeps: it is read, and must never go back."""

    def family(self) -> Metric:
        family = CounterMetricFamily(*self._about, labels=self._names)
        for values, value in self.items():
            family.add_metric(values, value)
        return family


class Info:
    """A series whose labels are facts, and whose value is 1."""

    def __init__(self, name: str, text: str) -> None:
        self._about = name, text
        self.read: Callable[[], dict[str, str]] = dict
        """The facts; none where there is nothing to tell of."""

    def family(self) -> InfoMetricFamily:
        family = InfoMetricFamily(*self._about)
        facts = self.read()
        if facts:
            family.add_metric((), facts)
        return family


class Series:
    """One histogram's buckets."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket alone, the last one up to infinity."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Histogram:
    """Histograms with the same bounds, by label values."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], labels: Labels) -> None:
        self._about = name, text
        self._bounds = bounds
        self._ends = (*map(floatToGoString, bounds), "+Inf")
        self._names = labels
        self._series: dict[Labels, Series] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> Series:
        """The histogram of these label values."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Series(self._bounds)
        return found

    def items(self) -> Iterator[tuple[Labels, list[tuple[str, float]], float]]:
        """Of each series label values, cumulated buckets and sum."""
        for values, series in self._series.items():
            yield values, list(zip(self._ends, accumulate(series.counts), strict=True)), series.sum

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(*self._about, labels=self._names)
        for values, buckets, total in self.items():
            family.add_metric(values, buckets, total)
        return family


Entered = TypeVar("Entered", bound=Instrument)


class Book(Collector):
    """All instruments in their order. Names get `prefix` in front."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._instruments: list[Instrument] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """`name` without `_total`."""
        return self._enter(Counter(self._prefix + name, text, labels))

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._enter(Gauge(self._prefix + name, text, labels))

    def read_counter(self, name: str, text: str, *labels: str) -> ReadCounter:
        """A counter whose values are read from others; `name` without `_total`."""
        return self._enter(ReadCounter(self._prefix + name, text, labels))

    def info(self, name: str, text: str) -> Info:
        """`name` without `_info`."""
        return self._enter(Info(self._prefix + name, text))

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        """`bounds` ascend."""
        return self._enter(Histogram(self._prefix + name, text, bounds, labels))

    def collect(self) -> Iterator[Metric]:
        """prometheus-client's question."""
        return (each.family() for each in self._instruments)

    def _enter(self, instrument: Entered) -> Entered:
        self._instruments.append(instrument)
        return instrument
