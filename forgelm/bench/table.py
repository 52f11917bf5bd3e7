"""A `Report` as a table for people."""

import sys

from rich.console import Console
from rich.table import Table

from forgelm.bench.kv import Report, Row
from forgelm.bench.needles import DEPTHS
from forgelm.bench.requests import Cell, Quality, Recall

NONE = "—"
WIDTH = 150
"""Columns where there is no terminal to ask."""
MIB = 2**20
HEADINGS = (
    "tokens", "KV", "KL mean", "KL p99", "top-1", "ppl", "KV MiB", "process MiB", "prefill", "decode", "recall",
)  # fmt: skip


def print_table(report: Report, *, colour: bool) -> None:
    """To stdout. One section per length; qualities stand beside the length whose text they were measured on."""
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, no_color=not colour, highlight=False
    )
    console.print(make_table(report))
    for note in report.notes:
        console.print(note)


def make_table(report: Report) -> Table:
    """The table alone."""
    sizes = ", ".join(f"{kv_type} {size:,}" for kv_type, size in report.bytes_per_token.items())
    table = Table(
        title=f"{report.model.file}, {report.threads} threads",
        caption=f"KV bytes per token: {sizes or 'unknown'}. Against f16 in parentheses; speeds in tokens per second. "
        f"KL in nats, over {report.quality[0].rows if report.quality else 0:,} rows. Recall: needles at "
        f"{', '.join(map(str, DEPTHS))} % of the text, and the mean log-probability of their tokens.",
    )
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index == 1 else "right")
    qualities = {quality.kv_type: quality for quality in report.quality}
    before: Row | None = None
    for row in report.rows:
        if before and (before.tokens, before.preset) != (row.tokens, row.preset):
            table.add_section()
        quality = qualities.get(row.kv_type) if row.tokens == report.rows[0].tokens else None
        table.add_row(*_name(row), *_quality(quality), *_cell(report, row))
        before = row
    return table


def _name(row: Row) -> tuple[str, str]:
    preset = f"{row.preset}: {row.slots} × " if row.preset else ""
    return f"{preset}{row.tokens:,}", row.kv_type


def _quality(quality: Quality | None) -> tuple[str, ...]:
    if quality is None:
        return ("",) * 4
    return (
        f"{quality.kl_mean:.5f}",
        f"{quality.kl_p99:.5f}",
        f"{quality.same_top:.2%}",
        f"{quality.perplexity:.3f}",
    )


def _cell(report: Report, row: Row) -> tuple[str, ...]:
    cell, reference = row.cell, report.reference(row)
    if cell is None:
        return (NONE,) * 5
    other = reference.cell if reference else None
    return (
        _against(row.kv_bytes, reference.kv_bytes if reference else None),
        _against(_total(cell), _total(other) if other else None),
        NONE if cell.prefill_rate is None else f"{cell.prefill_rate:.0f}",
        NONE if cell.decode_rate is None else f"{cell.decode_rate:.1f}",
        _recall(cell.recall) if report.recall_counts(row) else NONE,
    )


def _recall(needles: tuple[Recall, ...]) -> str:
    if not needles:
        return NONE
    marks = "".join("✓" if needle.found else "✗" for needle in needles)
    return f"{marks} {sum(needle.log_prob for needle in needles) / len(needles):.2f}"


def _total(cell: Cell) -> int:
    return cell.rss + cell.device_bytes


def _against(size: int | None, reference: int | None) -> str:
    if size is None:
        return NONE
    if not reference or size == reference:
        return f"{size / MIB:,.1f}"
    return f"{size / MIB:,.1f} ({size / reference - 1:+.0%})"
