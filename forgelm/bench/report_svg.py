"""Plots as inline SVG, without scripts or fonts of their own. Text is escaped here; colours are the page's variables.

Three plots: lines of points, ranges of percentiles, and a roofline. Axes are linear from 0 or logarithmic.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 16, 48
MOST_SERIES = 8
"""Colours that can be told apart."""
ROW = 40
"""Height of one range."""

Scale = Callable[[float], float]
"""From a value to a place."""


class Series(msgspec.Struct, frozen=True):
    """Points that belong together."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y)."""


class Range(msgspec.Struct, frozen=True):
    """Percentiles of one row: 50, 95 and 99."""

    name: str
    values: tuple[float, float, float]


class Roof(msgspec.Struct, frozen=True):
    """What a machine allows."""

    name: str
    bandwidth: float
    """Bytes per second."""
    flops: float
    """Per second."""


def line_plot(series: Sequence[Series], x_title: str, y_title: str) -> str:
    """Lines over a logarithmic x, whose ticks are the points' own; y is linear from 0."""
    points = [point for each in series for point in each.points]
    xs = sorted({x for x, _ in points})
    x = _log(xs[0] / 1.25, xs[-1] * 1.25, LEFT, WIDTH - RIGHT)
    top = max(y for _, y in points) or 1.0
    ticks = _nice(top)
    y = _linear(0.0, max(top, ticks[-1]), HEIGHT - BOTTOM, TOP)
    parts = [*_y_axis(ticks, y), *_x_axis(_thinned(xs, x), x), *_titles(x_title, y_title)]
    for index, each in enumerate(series):
        places = [(x(a), y(b)) for a, b in sorted(each.points)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="line" style="stroke:var(--s{index})" points="{path}"/>')
        parts += [_dot(a, b, index, f"{each.name}: {_short(v)} at {_short(u)}")
                  for (a, b), (u, v) in zip(places, sorted(each.points), strict=True)]  # fmt: skip
    return _svg(HEIGHT, f"{y_title} against {x_title}", parts)


def range_plot(ranges: Sequence[Range], x_title: str) -> str:
    """A line from p50 to p99 for each row over a logarithmic x, a mark at each percentile; names stand above them."""
    low = min(each.values[0] for each in ranges)
    high = max(each.values[2] for each in ranges)
    x = _log(low / 1.3, high * 1.3, 16, WIDTH - RIGHT)
    height = TOP + ROW * len(ranges) + BOTTOM
    parts = list(_x_axis(_decades(low / 1.3, high * 1.3), x, height))
    parts.append(f'<text class="title" x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">{escape(x_title)}</text>')
    for index, each in enumerate(ranges):
        at = TOP + ROW * index + 26
        p50, p95, p99 = (x(value) for value in each.values)
        said = ", ".join(f"p{p} {_short(value)}" for p, value in zip((50, 95, 99), each.values, strict=True))
        parts.append(f'<text class="label" x="16" y="{at - 11}">{escape(each.name)}</text>')
        parts.append(f'<line class="range" x1="{p50:.1f}" x2="{p99:.1f}" y1="{at}" y2="{at}"/>')
        parts.append(f'<circle class="p50" cx="{p50:.1f}" cy="{at}" r="5"><title>{escape(said)}</title></circle>')
        parts.append(f'<line class="tick95" x1="{p95:.1f}" x2="{p95:.1f}" y1="{at - 6}" y2="{at + 6}"/>')
        parts.append(f'<circle class="p99" cx="{p99:.1f}" cy="{at}" r="4"><title>{escape(said)}</title></circle>')
    return _svg(height, x_title, parts)


def roofline_plot(roof: Roof, series: Sequence[Series]) -> str:
    """Points (operations per byte, operations per second) under what memory and arithmetic allow, both logarithmic."""
    points = [point for each in series for point in each.points]
    ridge = roof.flops / roof.bandwidth
    low, high = min(ridge, *(a for a, _ in points)) / 4, max(ridge, *(a for a, _ in points)) * 4
    least = min(roof.bandwidth * low, *(b for _, b in points)) / 1.5
    most = max(roof.flops, *(b for _, b in points)) * 2
    x = _log(low, high, LEFT, WIDTH - RIGHT)
    y = _log(least, most, HEIGHT - BOTTOM, TOP)
    corners = [(low, roof.bandwidth * low), (ridge, roof.flops), (high, roof.flops)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
    parts = [*_y_axis(_decades(least, most), y), *_x_axis(_decades(low, high), x)]
    parts += _titles("floating-point operations per byte of weights", "operations per second")
    parts.append(f'<polyline class="roof" points="{path}"><title>{escape(roof.name)}</title></polyline>')
    for index, each in enumerate(series):
        parts += [_dot(x(a), y(b), index, f"{each.name}: {_short(b)}/s") for a, b in each.points]
    return _svg(HEIGHT, f"roofline of {roof.name}", parts)


def legend(names: Sequence[str]) -> str:
    """Names beside their colours, as HTML."""
    items = "".join(f'<li><i style="background:var(--s{i})"></i>{escape(name)}</li>' for i, name in enumerate(names))
    return f'<ul class="legend">{items}</ul>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return f'<div class="plot">{head}{"".join(parts)}</svg></div>'


def _dot(x: float, y: float, index: int, title: str) -> str:
    style = f"fill:var(--s{index})"
    return (
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5" style="{style}"><title>{escape(title)}</title></circle>'
    )


def _y_axis(ticks: Sequence[float], y: Scale) -> Iterator[str]:
    for tick in ticks:
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'


def _x_axis(ticks: Sequence[float], x: Scale, height: float = HEIGHT) -> Iterator[str]:
    for tick in ticks:
        yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
        place = f'x="{x(tick):.1f}" y="{height - BOTTOM + 18}"'
        yield f'<text class="tick" {place} text-anchor="middle">{_short(tick)}</text>'


def _titles(x_title: str, y_title: str) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return [
        f'<text class="title" x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text class="title" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>",
    ]


def _linear(low: float, high: float, begin: float, end: float) -> Scale:
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _log(low: float, high: float, begin: float, end: float) -> Scale:
    span = math.log(high / low)
    return lambda value: begin + math.log(value / low) / span * (end - begin)


def _nice(top: float) -> list[float]:
    """Ticks from 0 to at least `top`: steps of 1, 2 or 5."""
    raw = top / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten; with 2 and 5 times where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 5 else (1, 2, 5) if len(powers) < 4 else (1, 3)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _thinned(values: Sequence[float], x: Scale) -> list[float]:
    """Those that have room for their text."""
    kept: list[float] = []
    for value in values:
        if not kept or x(value) - x(kept[-1]) >= 28:
            kept.append(value)
    return kept


def _short(value: float) -> str:
    """Three digits and a letter for thousands."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
