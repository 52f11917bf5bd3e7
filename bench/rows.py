"""The table's rows: which figure, which bar, and what may be said about it.

Pure: takes the figures of both sides, returns text and numbers. A ratio whose interval holds 1 is "not distinguishable"
from equal; a bar inside the interval is neither met nor missed for certain, and the verdict says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from bench.stats import Estimate, location, ratio_of_pairs

Kind = Literal["ratio", "ours", "difference"]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    title: str
    metric: str
    kind: Kind = "ratio"
    """Compared as ours / theirs, ours alone, or ours − theirs."""
    bar: float | None = None
    at_least: bool = True
    """Whether the bar is a floor; otherwise it is a ceiling."""
    unit: str = ""
    scale: float = 1.0
    """From the metric's unit to `unit`."""

    def bar_text(self) -> str:
        return "" if self.bar is None else f"{'≥' if self.at_least else '≤'} {self.bar:g}"

    def meets(self, value: float) -> bool:
        """Whether `value` is on the bar's good side."""
        return self.bar is not None and (value >= self.bar if self.at_least else value <= self.bar)


@dataclass(frozen=True)
class Result:
    """A row with its figures."""

    row: Row
    ours: float
    theirs: float
    estimate: Estimate

    def effect(self) -> str:
        """What a ratio says, in words. Empty for rows that aren't ratios."""
        if self.row.kind != "ratio":
            return ""
        if self.estimate.low is None:
            return "too few pairs"
        if not self.estimate.distinguishable_from(1.0):
            return "not distinguishable"
        return f"{(self.estimate.median - 1) * 100:+.1f} %"

    def verdict(self) -> str:
        """Whether the bar is met. Certain only when the whole interval is on one side of it."""
        if self.row.bar is None:
            return ""
        good = self.row.meets(self.estimate.median)
        low, high = self.estimate.low, self.estimate.high
        if low is None or high is None:
            return ("met" if good else "MISSED") + " (no interval)"
        if self.row.meets(low) != self.row.meets(high):
            return ("met" if good else "MISSED") + " (bar inside the interval)"
        return "met" if good else "MISSED"

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row.title,
            "metric": self.row.metric,
            "kind": self.row.kind,
            "unit": self.row.unit,
            "ours": number(self.ours),
            "theirs": number(self.theirs),
            "median": number(self.estimate.median),
            "low": number(self.estimate.low),
            "high": number(self.estimate.high),
            "pairs": self.estimate.pairs,
            "bar": self.row.bar,
            "at_least": self.row.at_least,
            "effect": self.effect(),
            "verdict": self.verdict(),
        }


def number(value: float | None) -> float | None:
    """Five significant digits; None for what JSON can't hold."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def evaluate(row: Row, ours: Sequence[float], theirs: Sequence[float]) -> Result:
    """Compare one metric of all pairs. `theirs` is empty where there is no peer."""
    mine = [value * row.scale for value in ours]
    other = [value * row.scale for value in theirs]
    middles = median(mine) if mine else math.nan, median(other) if other else math.nan
    if row.kind == "ratio":
        return Result(row, *middles, ratio_of_pairs(mine, other))
    if row.kind == "difference":
        return Result(row, *middles, location([a - b for a, b in zip(mine, other, strict=True)]))
    return Result(row, *middles, location(mine))


HEADINGS = ("what", "unit", "ours", "theirs", "ratio (or value)", "95 % interval", "effect", "bar", "verdict")


def table(results: Sequence[Result]) -> str:
    """A Markdown table, aligned for the terminal and ready for LOG.md."""
    return aligned([HEADINGS, *(_cells(result) for result in results)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of the cells in `lines`, the headings first."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    rows = ["| " + " | ".join(line) + " |" for line in padded]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])


def _cells(result: Result) -> tuple[str, ...]:
    estimate = result.estimate
    interval = "" if estimate.low is None else f"{short(estimate.low)} … {short(estimate.high)}"
    value = short(estimate.median)
    figures = (short(result.ours), short(result.theirs), value, interval)
    return (result.row.title, result.row.unit, *figures, result.effect(), result.row.bar_text(), result.verdict())


def short(value: float | None) -> str:
    """Three digits, or more before the point; "" for no number."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def throughput(bar: float | None) -> tuple[Row, ...]:
    """Rows of the plain HTTP scenarios. Latencies are shown without a bar."""
    return (
        Row("output", "output_tok_s", bar=bar, unit="tok/s"),
        Row("TTFT p50", "ttft_p50_s", at_least=False, unit="ms", scale=1e3),
        Row("ITL p50", "itl_p50_s", at_least=False, unit="ms", scale=1e3),
        Row("ITL p99", "itl_p99_s", at_least=False, unit="ms", scale=1e3),
    )


def shared(output_bar: float | None, reused_bar: float | None) -> tuple[Row, ...]:
    """Rows of many questions under one system prompt. Bars: output as a ratio, reuse in percent."""
    return (
        Row("TTFT p50", "ttft_p50_s", bar=0.30, at_least=False, unit="s"),
        Row("TTFT mean", "ttft_mean_s", at_least=False, unit="s"),
        Row("output", "output_tok_s", bar=output_bar, unit="tok/s"),
        Row("cached, of all prompts but one", "reused_share", "ours", reused_bar, unit="%", scale=100),
        SAME_WORK,
    )


def turns(ttft_bar: float, reused_bar: float) -> tuple[Row, ...]:
    """Rows of conversations. Bars: TTFT as a ratio, reuse in percent."""
    return (
        Row("TTFT mean", "ttft_mean_s", bar=ttft_bar, at_least=False, unit="s"),
        Row("TTFT mean, turns after the first", "later_ttft_mean_s", at_least=False, unit="s"),
        Row("output", "output_tok_s", unit="tok/s"),
        Row("cached, of what was sent before", "reused_share", "ours", reused_bar, unit="%", scale=100),
        SAME_WORK,
    )


SAME_WORK = Row("prompt tokens − theirs", "prompt_tokens", "difference")
RESTART = (
    Row("TTFT restarted / cold", "restart_ratio", "ours", 0.15, False),
    Row("TTFT warm / cold", "warm_ratio", "ours", at_least=False),
    Row("TTFT cold", "cold_ttft_s", "ours", at_least=False, unit="ms", scale=1e3),
    Row("TTFT warm", "warm_ttft_s", "ours", at_least=False, unit="ms", scale=1e3),
    Row("TTFT restarted", "restart_ttft_s", "ours", at_least=False, unit="ms", scale=1e3),
    Row("cached after the restart, of the prompt", "restart_reused_share", "ours", unit="%", scale=100),
)

ROWS: dict[str, tuple[Row, ...]] = {
    "decode": tuple(
        Row(f"engine decode, B = {b}", f"decode_b{b}_tok_s", bar=0.97, unit="tok/s") for b in (1, 4, 8, 16)
    ),
    "http1": throughput(0.97),
    "http8": (
        *throughput(1.0),
        Row("API process RSS", "api_rss_mb", "ours", 150.0, False, "MB"),
        Row("API process PSS", "api_pss_mb", "ours", None, False, "MB"),
        Row("engine RSS − theirs", "engine_rss_mb", "difference", 20.0, False, "MB"),
        Row("engine PSS − theirs", "engine_pss_mb", "difference", None, False, "MB"),
    ),
    "mixed": (
        Row("decoders' ITL p99", "decoder_itl_p99_s", bar=0.10, at_least=False, unit="ms", scale=1e3),
        Row("decoders' ITL p95", "decoder_itl_p95_s", at_least=False, unit="ms", scale=1e3),
        Row("decoders' ITL p50", "decoder_itl_p50_s", at_least=False, unit="ms", scale=1e3),
        Row("decoders' ITL max", "decoder_itl_max_s", at_least=False, unit="ms", scale=1e3),
        Row("decoders' tokens", "decoder_tok_s", unit="tok/s"),
        Row("long prompts' TTFT p50", "long_ttft_p50_s", bar=1.6, at_least=False, unit="s"),
    ),
    "start": (
        Row("start to first token", "first_token_s", "ours", 3.0, False, "s"),
        Row("the same, against theirs", "first_token_s", at_least=False, unit="s"),
    ),
    "shared": shared(2.0, None),
    "turns": turns(0.8, 95),
    "restart": RESTART,
    "shared-hybrid": shared(None, 90),
    "turns-hybrid": turns(0.5, 90),
    "restart-hybrid": RESTART,
}
"""Scenario → its rows."""

TITLES = {
    "decode": "engine alone and llama-batched-bench",
    "http1": "HTTP, 1 client, unique prompts",
    "http8": "HTTP, 8 clients, unique prompts",
    "mixed": "4 decoders beside long prompts that arrive one after another",
    "start": "start of the process to its first streamed token",
    "shared": "16 questions under one system prompt of 375 tokens, 8 at a time",
    "turns": "4 conversations of 4 turns at the same time",
    "restart": "a prompt of 2,000 tokens after a restart, with the disk tier",
    "shared-hybrid": "16 questions under one system prompt of 375 tokens, 8 at a time, hybrid model",
    "turns-hybrid": "4 conversations of 4 turns at the same time, hybrid model",
    "restart-hybrid": "a prompt of 2,000 tokens after a restart, with the disk tier, hybrid model",
}
