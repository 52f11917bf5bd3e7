"""A result as a table for people, and as a line in a file."""

import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from forgelm.bench.result import Ceiling, Result, Row, Spread, to_line
from forgelm.errors import ConfigError

NONE = "—"
WIDTH = 160
"""Columns where there is no terminal to ask."""
HEADINGS = (
    "\nworkload", "\nload", "\ndone", "TTFT\ns", "ITL\nms", "whole\ns", "out\ntok/s", "\ncached", "RSS\nGB",
    "VRAM\nGB", "of\nmax",
)  # fmt: skip
CAPTION = (
    "load: so many clients, or so many requests a second. Latencies: p50/p95/p99 to the first token, between tokens, "
    "and of the whole answer. of max: decoding, of what the ceiling allows."
)
OPTIONAL = ("VRAM\nGB", "of\nmax")
"""Columns that aren't there where no row has anything in them: 100 characters are few."""


def print_result(result: Result, *, colour: bool) -> None:
    """The table, what it stands on and the notes, to stdout."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(file=sys.stdout, width=width, no_color=not colour, highlight=False, markup=False, emoji=False)
    console.print(make_table(result))
    for line in (*_ceiling_lines(result.ceiling), *result.notes, *_row_notes(result)):
        console.print(line, soft_wrap=True)


def make_table(result: Result) -> Table:
    """The table alone."""
    subject = result.subject
    named = filter(None, (subject.server, subject.version, subject.model, subject.quant, subject.profile))
    lines = [_cells(row, result.ceiling) for row in result.rows]
    shown = [
        index
        for index, heading in enumerate(HEADINGS)
        if heading not in OPTIONAL or any(line[index] != NONE for line in lines)
    ]
    table = Table(
        title=" · ".join(named),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        # All columns at once have no room for more than one blank between them.
        padding=(0, len(shown) < len(HEADINGS), 0, 0),
        caption=CAPTION,
        caption_justify="left",
    )
    for index in shown:
        table.add_column(HEADINGS[index], justify="left" if index == 0 else "right")
    for line in lines:
        table.add_row(*(line[index] for index in shown))
    return table


def decode_share(row: Row, ceiling: Ceiling | None) -> float | None:
    """Decoding as a part of what is possible. Only one client alone has all of the bandwidth for its sequence, and
    only a model that no cache can hold needs it."""
    if ceiling is None or ceiling.in_cache or row.load != "closed" or row.clients != 1 or not row.decode_rate:
        return None
    return row.decode_rate / ceiling.decode


def _cells(row: Row, ceiling: Ceiling | None) -> tuple[str, ...]:
    share = decode_share(row, ceiling)
    return (
        row.workload,
        str(row.clients) if row.load == "closed" else f"{row.rate:.3g}/s",
        f"{row.requests}/{row.requests + row.failed}" if row.failed else str(row.requests),
        _latencies(row.ttft, 1.0),
        _latencies(row.itl, 1e3),
        _latencies(row.e2e, 1.0),
        f"{row.output_rate:.1f}",
        f"{row.cached_tokens / row.prompt_tokens:.0%}" if row.prompt_tokens else NONE,
        NONE if row.peak_rss is None else f"{row.peak_rss / 1e9:.2f}",
        NONE if row.peak_vram is None else f"{row.peak_vram / 1e9:.2f}",
        NONE if share is None else f"{share:.0%}",
    )


def _latencies(spread: Spread | None, scale: float) -> str:
    if spread is None:
        return NONE
    return "/".join(three_digits(value * scale) for value in (spread.p50, spread.p95, spread.p99))


def three_digits(value: float) -> str:
    """A figure with three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ceiling_lines(ceiling: Ceiling | None) -> list[str]:
    if ceiling is None:
        return []
    size = f"{ceiling.cache_bytes / 1e6:,.0f} MB"
    cached = f" The model may lie in the processor's cache of {size}: memory isn't what limits it."
    return [
        f"Ceiling of {ceiling.where}: decode {ceiling.decode:,.0f} tok/s for one sequence "
        f"({ceiling.bandwidth / 1e9:.1f} GB/s over {ceiling.bytes_per_token / 1e6:,.1f} MB a token), prefill "
        f"{ceiling.prefill:,.0f} tok/s ({ceiling.flops / 1e9:,.0f} GFLOP/s over "
        f"{ceiling.flops_per_token / 1e9:.2f} GFLOP a token). Instructions for quantized weights can go "
        f"beyond it.{cached if ceiling.in_cache else ''}"
    ]


def _row_notes(result: Result) -> list[str]:
    """A row's notes with its name, equal ones once."""
    found: dict[str, list[str]] = {}
    for row in result.rows:
        for note in row.notes:
            name = f"{row.workload} {row.clients}" if row.load == "closed" else f"{row.workload} {row.rate:.3g}/s"
            found.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in found.items()]


def append_line(result: Result, path: Path) -> None:
    """Add the result to a file of results. Raises `ConfigError` when it can't be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{to_line(result)}\n")
    except OSError as error:
        raise ConfigError(f"the result can't be written to {path}: {error.strerror}") from None
