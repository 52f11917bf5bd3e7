"""A tuning's result as a table: TPS, TTFT, ITL, VRAM, RAM and quality of every candidate, and what became of it."""

import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from forgelm.bench.result import Result, Row
from forgelm.bench.space import Value, label
from forgelm.bench.tuning_rows import Line, lines

NONE = "—"
HEADINGS = (
    "settings", "decode tok/s", "throughput tok/s", "TTFT s", "ITL p99 ms", "VRAM GiB", "RAM GiB", "perplexity",
    "outcome",
)  # fmt: skip
GIB = 2**30
WIDTH = 150
"""Columns where there is no terminal to ask."""


def table_cells(result: Result) -> list[tuple[str, ...]]:
    """The cells under `HEADINGS`, one row for each candidate. The first is the default: the others say what differs."""
    found = lines(result.rows)
    default = found[0].settings if found else {}
    return [(_name(line, default), *_figures(line), line.any.notes[0]) for line in found]


def _name(line: Line, default: Mapping[str, Value]) -> str:
    name = label({key: value for key, value in line.settings.items() if default.get(key) != value})
    return f"{name} (measured again)" if line.stage == "final" else name


def _figures(line: Line) -> tuple[str, ...]:
    decode, ttft, throughput, itl = (line.rows.get(name) for name in ("decode", "ttft", "throughput", "itl"))
    return (
        _number(decode.decode_rate if decode else None, ".1f"),
        _number(throughput.output_rate if throughput else None, ".1f"),
        _number(ttft.ttft.p50 if ttft and ttft.ttft else None, ".3f"),
        _number(1e3 * itl.itl.p99 if itl and itl.itl else None, ".1f"),
        _number(_most(list(line.rows.values()), "peak_vram"), ".2f"),
        _number(_most(list(line.rows.values()), "peak_rss"), ".2f"),
        _number(line.any.quality.get("perplexity"), ".3f"),
    )


def _most(rows: Sequence[Row], name: str) -> float | None:
    taken = [size for row in rows if (size := getattr(row, name))]
    return max(taken) / GIB if taken else None


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def print_result(result: Result, *, colour: bool) -> None:
    """The table and the notes, to stdout."""
    console = Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else WIDTH,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    table = Table(title=f"{result.subject.file}, {result.machine.cpu}, {result.machine.cores} cores", box=SIMPLE_HEAD)
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index in (0, len(HEADINGS) - 1) else "right")
    for cells in table_cells(result):
        table.add_row(*cells)
    console.print(table)
    for note in result.notes:
        console.print(note)
