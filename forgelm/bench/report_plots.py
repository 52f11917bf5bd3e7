"""What a report's plots show: series and ranges, gathered from the rows of results."""

from collections.abc import Sequence

from forgelm.bench.report_svg import MOST_SERIES, Range, Roof, Series
from forgelm.bench.report_tables import own_settings, row_name
from forgelm.bench.result import Ceiling, Result, Row
from forgelm.bench.space import label
from forgelm.bench.tuning_rows import lines

MOST_RANGES = 24
LEAST_SECONDS = 1e-5
"""Pieces that arrive together are no time apart, which a logarithmic axis can't show."""


def throughput(results: Sequence[Result]) -> list[Series]:
    """Output tokens per second over clients: a line for each server, model and workload. A tuning has fixed clients."""
    found: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        for row in result.rows if result.bench != "tune" else ():
            if row.load == "closed" and row.clients and row.requests:
                found.setdefault(_series_name(result, row), []).append((float(row.clients), row.output_rate))
    return [Series(name, tuple(points)) for name, points in found.items()]


def _series_name(result: Result, row: Row) -> str:
    settings = own_settings(row)
    parts = (_server(result), row.workload, label(settings) if settings else "")
    return ": ".join(filter(None, parts))


def _plotted(result: Result) -> Sequence[Row]:
    """The rows that a plot has room for: of a tuning the last comparison alone, or the default where there was none."""
    if result.bench != "tune":
        return result.rows
    found = lines(result.rows)
    last = [line for line in found if line.stage == "final"] or found[:1]
    return [row for line in last for row in line.rows.values()]


def _server(result: Result) -> str:
    subject = result.subject
    return " ".join(filter(None, (subject.server, subject.profile or subject.model, subject.quant)))


def latencies(results: Sequence[Result], name: str) -> list[Range]:
    """The percentiles of `ttft` or `itl` of each row, in milliseconds."""
    ranges = []
    for result in results:
        for row in _plotted(result):
            spread = row.ttft if name == "ttft" else row.itl
            if spread is not None:
                values = tuple(1e3 * max(LEAST_SECONDS, value) for value in (spread.p50, spread.p95, spread.p99))
                ranges.append(Range(f"{_server(result)}: {row_name(row)}", (values[0], values[1], values[2])))
    return ranges


def rooflines(results: Sequence[Result]) -> list[tuple[Roof, list[Series]]]:
    """For each place that a ceiling was measured at: the roof, and where the rows are under it."""
    roofs: dict[str, Roof] = {}
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for result in results:
        if result.ceiling is None:
            continue
        ceiling = result.ceiling
        key = f"{ceiling.where}: {ceiling.bandwidth / 1e9:.1f} GB/s, {ceiling.flops / 1e9:,.0f} GFLOP/s"
        roofs[key] = Roof(key, ceiling.bandwidth, ceiling.flops)
        series = points.setdefault(key, {})
        for row in _plotted(result):
            point = roofline_point(row, ceiling)
            if point is not None:
                series.setdefault(_series_name(result, row), []).append(point)
    return [
        (roof, [Series(name, tuple(found)) for name, found in points[key].items()][:MOST_SERIES])
        for key, roof in roofs.items()
        if points[key]
    ]


def roofline_point(row: Row, ceiling: Ceiling) -> tuple[float, float] | None:
    """(operations per byte of weights, operations per second); None for a row that computed nothing.

    Rows that decode read all weights once for as many tokens as there are clients. A row whose answers have one token
    is all prefill, and reads them once for each prompt, or more often where that is longer than a ubatch: there the
    intensity is an upper bound.
    """
    if not row.requests or not row.seconds:
        return None
    intensity = ceiling.flops_per_token / ceiling.bytes_per_token
    together: float
    if row.output_tokens > row.requests:
        rate: float | None = row.decode_rate if row.clients == 1 else row.output_rate
        together = max(1, row.clients)
    else:
        computed = row.prompt_tokens - row.cached_tokens
        rate = computed / (row.requests * row.ttft.mean) if row.ttft and row.ttft.mean else None
        together = computed / row.requests
    return (intensity * together, rate * ceiling.flops_per_token) if rate and together else None
