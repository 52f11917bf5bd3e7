"""A report's tables: headings and cells of plain text, which HTML and Markdown escape each in their way."""

import re
from collections.abc import Sequence

import msgspec

from forgelm.bench import kv
from forgelm.bench.result import Result, Row, Spread
from forgelm.bench.space import label
from forgelm.bench.tuning_rows import FOR, STAGE
from forgelm.bench.tuning_table import HEADINGS as TUNE_HEADINGS
from forgelm.bench.tuning_table import table_cells

NONE = "—"
GIB = 2**30


class Grid(msgspec.Struct, frozen=True):
    """One table, with what it is about."""

    title: str
    facts: tuple[str, ...]
    """What was measured, where and when: lines above it."""
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


RUN_HEADINGS = (
    "workload", "load", "requests", "failed", "output tok/s", "decode tok/s", "of ceiling", "TTFT p50/p95/p99 s",
    "ITL p50/p95/p99 ms", "E2E p50/p95/p99 s", "cached", "RAM GiB", "VRAM GiB",
)  # fmt: skip


def grid_of(result: Result) -> Grid:
    """The table of one result."""
    if result.bench == "tune":
        return Grid(title_of(result), facts_of(result), TUNE_HEADINGS, tuple(table_cells(result)), result.notes)
    rows = tuple(_run_cells(row, result) for row in result.rows)
    notes = tuple(dict.fromkeys(note for row in result.rows for note in row.notes))
    return Grid(title_of(result), facts_of(result), RUN_HEADINGS, rows, (*result.notes, *notes))


def title_of(result: Result) -> str:
    """`run: forgelm, qwen3.5-4b Q4_K_M`."""
    subject = result.subject
    return f"{result.bench}: {subject.server or 'a server'}, {subject.model} {subject.quant}".rstrip()


def facts_of(result: Result) -> tuple[str, ...]:
    """Machine, model, version, ceiling and command."""
    machine, subject, ceiling = result.machine, result.subject, result.ceiling
    where = [f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / GIB:.0f} GiB", *machine.gpus]
    file = f"{subject.file} ({subject.bytes / GIB:.2f} GiB, sha256 {subject.sha256[:12]}…)" if subject.file else ""
    version = f"{subject.server} {subject.version}".strip()
    commit = f"commit {result.commit}" if result.commit else f"forgelm {result.forgelm}"
    facts = [" · ".join(where), " · ".join(filter(None, (file, subject.kv_type, version, commit, result.taken[:16])))]
    if ceiling:
        facts.append(
            f"At most {ceiling.decode:.1f} tok/s decode of one sequence ({ceiling.bandwidth / 1e9:.1f} GB/s over "
            f"{ceiling.bytes_per_token / 1e9:.3f} GB) and {ceiling.prefill:,.0f} tok/s prefill on {ceiling.where}"
        )
    return (*facts, result.command)


def row_name(row: Row) -> str:
    """`unique, 8 clients`, with the settings in which rows differ."""
    load = f"{row.clients} client{'s' * (row.clients != 1)}" if row.load == "closed" else f"{row.rate:g} requests/s"
    settings = own_settings(row)
    return ", ".join(filter(None, (row.workload, load, label(settings) if settings else "")))


def own_settings(row: Row) -> dict[str, str | int | float | bool]:
    """Without what only says which row of a tuning it is."""
    return {key: value for key, value in row.settings.items() if key not in (FOR, STAGE)}


def _run_cells(row: Row, result: Result) -> tuple[str, ...]:
    rate = row.decode_rate
    name, _, load = row_name(row).partition(", ")
    alone = row.clients == 1 and row.load == "closed" and result.ceiling and rate
    return (
        name,
        load,
        str(row.requests),
        str(row.failed),
        f"{row.output_rate:.1f}",
        f"{rate:.1f}" if rate else NONE,
        f"{rate / result.ceiling.decode:.0%}" if alone and result.ceiling else NONE,
        _spread(row.ttft, 1, ".3f"),
        _spread(row.itl, 1e3, ".1f"),
        _spread(row.e2e, 1, ".2f"),
        f"{row.cached_tokens / row.prompt_tokens:.0%}" if row.prompt_tokens else NONE,
        _size(row.peak_rss),
        _size(row.peak_vram),
    )


def _spread(spread: Spread | None, scale: float, form: str) -> str:
    if spread is None:
        return NONE
    return " / ".join(format(scale * value, form) for value in (spread.p50, spread.p95, spread.p99))


def _size(size: int | None) -> str:
    return f"{size / GIB:.2f}" if size else NONE


KV_HEADINGS = ("tokens", "KV", "KL mean", "perplexity", "RAM + VRAM GiB", "prefill tok/s", "decode tok/s", "recall")


def grid_of_kv(report: kv.Report) -> Grid:
    """The table of a comparison of KV types."""
    qualities = {quality.kv_type: quality for quality in report.quality}
    rows = []
    for row in report.rows:
        quality = qualities.get(row.kv_type) if row.tokens == report.rows[0].tokens else None
        cell = row.cell
        rows.append(
            (
                f"{row.tokens:,}",
                row.kv_type,
                f"{quality.kl_mean:.5f}" if quality else NONE,
                f"{quality.perplexity:.3f}" if quality else NONE,
                f"{(cell.rss + cell.device_bytes) / GIB:.2f}" if cell else NONE,
                f"{cell.prefill_rate:.0f}" if cell and cell.prefill_rate else NONE,
                f"{cell.decode_rate:.1f}" if cell and cell.decode_rate else NONE,
                f"{found(row)} of {len(cell.recall)}" if cell and cell.recall else row.problem or NONE,
            )
        )
    facts = (f"{report.model.file}, {report.threads} threads, forgelm {report.forgelm}, text: {report.text.source}",)
    return Grid(f"kv: {report.model.file}", facts, KV_HEADINGS, tuple(rows), report.notes)


def found(row: kv.Row) -> int:
    """How many needles were found."""
    return sum(needle.found for needle in row.cell.recall) if row.cell else 0


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown; nothing in a cell ends the cell, or is markup."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(markdown_text, line))} |" for line in lines)


def markdown_text(text: str) -> str:
    """One line of plain text."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    return " ".join(_MARKS.sub(r"\\\g<0>", escaped).split())


_MARKS = re.compile(r"[|`*\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What is markup in a line; an underscore inside a word is none."""
