"""Counters, gauges and histograms as scrapers read them, and against prometheus-client's own."""

import math
import random

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from forgelm.metrics.instruments import Book


def read(book: Book) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Everything by name and labels."""
    registry = CollectorRegistry()
    registry.register(book)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_a_counter_is_there_from_the_start_and_one_with_labels_from_its_first_use() -> None:
    book = Book("x_")
    plain, by = book.counter("plain", "One."), book.counter("by", "By two.", "a", "b")
    assert read(book) == {("x_plain_total", ()): 0}
    plain.inc()
    plain.inc(2.5)
    by.labels("1", "2").inc()
    by.labels("1", "2").inc(3)
    by.labels('quo"te\n', "2").inc()
    assert read(book) == {
        ("x_plain_total", ()): 3.5,
        ("x_by_total", (("a", "1"), ("b", "2"))): 4,
        ("x_by_total", (("a", 'quo"te\n'), ("b", "2"))): 1,
    }
    assert by.total == 5


def test_a_gauge_is_read_when_somebody_looks() -> None:
    book, values = Book("x_"), [1.0]
    gauge = book.gauge("level", "Read.", "who")
    assert read(book) == {}
    gauge.read_from(lambda: values[0], "me")
    gauge.read_all_from(lambda: [((f"n{n}",), float(n)) for n in range(int(values[0]))])
    values[0] = 2.0
    assert read(book) == {
        ("x_level", (("who", "me"),)): 2.0,
        ("x_level", (("who", "n0"),)): 0.0,
        ("x_level", (("who", "n1"),)): 1.0,
    }


def test_facts_are_labels_and_none_is_no_series() -> None:
    book = Book("x_")
    info = book.info("build", "Facts.")
    assert read(book) == {}
    info.read = lambda: {"version": "1"}
    assert read(book) == {("x_build_info", (("version", "1"),)): 1.0}


def test_histograms_are_prometheus_clients() -> None:
    """Also on the bounds themselves, below the first and above the last."""
    bounds = (0.0, 0.1, 0.5, 1.0, 5.0)
    book = Book("x_")
    ours = book.histogram("seconds", "Ours.", bounds, "kind")
    registry = CollectorRegistry()
    theirs = prometheus_client.Histogram("x_seconds", "Theirs.", ["kind"], buckets=bounds, registry=registry)
    rng = random.Random(1)
    for value in [*bounds, -1.0, 7.0, *(rng.expovariate(1.0) for _ in range(1000))]:
        for kind in ("a", "b"):
            ours.labels(kind).observe(value)
            theirs.labels(kind).observe(value)
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    found = read(book)
    assert found.keys() == expected.keys()
    assert all(math.isclose(found[key], value) for key, value in expected.items())
