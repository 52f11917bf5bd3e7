"""Is the new version slower? Two files of results, compared row by row.

    python -m bench.regress OLD NEW                  exit status 1 if something got worse, 2 if that can't be said
    python -m bench.regress OLD NEW --threshold 0.1

Both are files of JSON lines as `forgelm bench` and `python -m bench.compare --output FILE` write them; other lines are
passed over. Lines are only added to such a file, so a row that stands in it several times was measured several times.

A figure got worse when its median is worse by more than the threshold **and** chance is not a likely reason. Where both
sides have repetitions enough, that is an exact rank-sum test (Mann and Whitney): the probability that the same program,
measured as often, had shown the new side so much worse, must be at most `CHANCE`. It assumes no distribution, so of
six runs one beside a busy neighbour neither makes nor hides a regression. Where there are too few (three of each are
enough) nothing is known of the noise, and the threshold is `--single`. Of many noisy figures a few pass this by chance
as well: before believing a single one, measure it again.

What is compared must be the same work: server, workload, load and settings name a row; machine and model must be the
same, and the tokens per request. A row that only the old file has is an error, since it could hide anything.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.rows import aligned, short
from forgelm.bench.result import Machine, Result, Row, Spread, Subject, read_results

CHANCE = 0.05
SAME_WORK = 0.05
"""Tokens per request may differ so much: prompts are drawn anew, and tokenizers cut them a little differently."""
SAME_MEMORY = 0.02
"""RAM that the kernel keeps for itself differs between its versions."""
FAILED_SHARE = 0.01


class CantCompareError(Exception):
    """The two sides of a row aren't comparable; the message says why."""


@dataclass(frozen=True)
class Figure:
    """One figure of a row."""

    name: str
    unit: str
    of: Callable[[Row], float | None]
    """In `unit`; None where it wasn't measured."""
    more_is_better: bool = False


def _latency(spread: Callable[[Row], Spread | None], which: str) -> Callable[[Row], float | None]:
    def read(row: Row) -> float | None:
        found = spread(row)
        return None if found is None else float(getattr(found, which)) * 1e3

    return read


def _megabytes(read: Callable[[Row], int | None]) -> Callable[[Row], float | None]:
    return lambda row: None if (value := read(row)) is None else value / 1e6


FIGURES = (
    Figure("output", "tok/s", lambda row: row.output_rate, more_is_better=True),
    Figure("TTFT p50", "ms", _latency(lambda row: row.ttft, "p50")),
    Figure("TTFT p95", "ms", _latency(lambda row: row.ttft, "p95")),
    Figure("ITL p50", "ms", _latency(lambda row: row.itl, "p50")),
    Figure("ITL p99", "ms", _latency(lambda row: row.itl, "p99")),
    Figure("peak RSS", "MB", _megabytes(lambda row: row.peak_rss)),
    Figure("peak VRAM", "MB", _megabytes(lambda row: row.peak_vram)),
)


@dataclass
class Measured:
    """Every repetition of one row in one file."""

    machine: Machine
    subject: Subject
    rows: list[Row] = field(default_factory=list)

    def values(self, figure: Figure) -> list[float]:
        """The figure of each repetition that has it."""
        found = [figure.of(row) for row in self.rows]
        return [value for value in found if value is not None and math.isfinite(value) and value > 0]

    def failed(self) -> float:
        """Share of the requests that failed."""
        return sum(row.failed for row in self.rows) / max(1, sum(row.failed + row.requests for row in self.rows))

    def tokens(self) -> tuple[float, float]:
        """Prompt and output tokens per answered request."""
        requests = max(1, sum(row.requests for row in self.rows))
        return sum(r.prompt_tokens for r in self.rows) / requests, sum(r.output_tokens for r in self.rows) / requests


def by_row(results: Sequence[Result]) -> dict[str, Measured]:
    """Name of the row → its repetitions. Raises `CantCompareError` where one file mixes machines or models."""
    found: dict[str, Measured] = {}
    for result in results:
        for row in result.rows:
            name = row_name(result.subject, row)
            measured = found.setdefault(name, Measured(result.machine, result.subject))
            same_place(measured, Measured(result.machine, result.subject))
            measured.rows.append(row)
    return found


def row_name(subject: Subject, row: Row) -> str:
    """What makes two rows the same measurement, readable."""
    load = f"{row.clients} clients" if row.load == "closed" else f"{row.rate:g} requests/s"
    settings = [f"{name}={value}" for name, value in sorted(row.settings.items())]
    return ", ".join([subject.server or "unnamed server", row.workload, load, *settings])


def same_place(old: Measured, new: Measured) -> None:
    """Raises `CantCompareError` unless both ran on one machine with one model."""
    for name in ("cpu", "cores", "gpus"):
        _same(name, getattr(old.machine, name), getattr(new.machine, name))
    sizes = old.machine.memory_bytes, new.machine.memory_bytes
    if abs(sizes[0] - sizes[1]) > SAME_MEMORY * max(sizes):
        raise CantCompareError(f"other memory: {sizes[0] / 1e9:.1f} GB, then {sizes[1] / 1e9:.1f} GB")
    # Two files of one name can differ; only where a hash is missing the names have to do.
    hashed = bool(old.subject.sha256 and new.subject.sha256)
    _same("model", *((one.subject.sha256 if hashed else one.subject.model) for one in (old, new)))
    for name in ("quant", "kv_type", "profile"):
        _same(name, getattr(old.subject, name), getattr(new.subject, name))


def same_work(old: Measured, new: Measured) -> None:
    """Raises `CantCompareError` where requests of the two sides differ in length."""
    for what, before, after in zip(("prompt", "output"), old.tokens(), new.tokens(), strict=True):
        if abs(before - after) > SAME_WORK * max(before, after):
            raise CantCompareError(f"other work: {before:.0f} {what} tokens a request, then {after:.0f}")


def _same(name: str, old: object, new: object) -> None:
    if old != new:
        raise CantCompareError(f"other {name}: {old or 'none'}, then {new or 'none'}")


@dataclass(frozen=True)
class Change:
    """One figure of one row, old and new."""

    row: str
    figure: Figure
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """New / old, of the medians."""
        return median(self.new) / median(self.old)

    @property
    def worse(self) -> float:
        """By what part it is worse; negative where it is better. Half the speed and twice the time are both 1."""
        return (1 / self.ratio if self.figure.more_is_better else self.ratio) - 1

    @property
    def chance(self) -> float | None:
        """Probability of a new side at least so much worse if nothing had changed; None with too few repetitions."""
        if 1 / math.comb(len(self.old) + len(self.new), len(self.old)) > CHANCE:
            return None
        sign = -1 if self.figure.more_is_better else 1
        return rank_sum_chance([sign * value for value in self.old], [sign * value for value in self.new])

    def regressed(self, threshold: float, single: float) -> bool:
        """Whether it got worse by more than the threshold, and not by chance."""
        chance = self.chance
        return self.worse > single if chance is None else self.worse > threshold and chance <= CHANCE

    def verdict(self, threshold: float, single: float) -> str:
        """For the table."""
        if self.regressed(threshold, single):
            return "WORSE"
        if self.worse > threshold:
            return "worse, within the noise" if self.chance is not None else "worse, noise unknown"
        return "better" if self.worse < -threshold else "same"


def rank_sum_chance(low: Sequence[float], high: Sequence[float]) -> float:
    """P(the values of `high` exceed those of `low` as often as they do, or more often | both are of one distribution).

    Exact for values that all differ: every interleaving is equally likely, and the number of interleavings by the
    number of pairs (one of each side) in order is the Gaussian binomial coefficient. Ties count as half.
    """
    wins = sum((b > a) + (b == a) / 2 for a in low for b in high)
    ways = _ways(len(low), len(high))
    return sum(ways[math.ceil(wins) :]) / sum(ways)


def _ways(m: int, n: int) -> list[int]:
    """Interleavings of `m` and `n` values by the number of pairs in which the one of the second kind comes later."""
    # counts[k][s]: ways to choose k of the places seen so far so that their offsets add up to s.
    counts = [[1] + [0] * (m * n)] + [[0] * (m * n + 1) for _ in range(n)]
    for place in range(m + n):
        for k in range(min(n, place + 1), 0, -1):
            offset = place - (k - 1)
            for s in range(offset, m * n + 1):
                counts[k][s] += counts[k - 1][s - offset]
    return counts[n]


@dataclass
class Comparison:
    """Two files."""

    changes: list[Change] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Rows that can't be compared and why."""
    failures: list[str] = field(default_factory=list)
    """Rows in which more requests fail now."""
    added: list[str] = field(default_factory=list)
    """Rows that only the new file has."""


def compare(old: dict[str, Measured], new: dict[str, Measured]) -> Comparison:
    """Every row of either."""
    found = Comparison(added=[name for name in new if name not in old])
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            found.problems.append(f"{name}: missing in the new file")
            continue
        try:
            same_place(before, after)
            same_work(before, after)
        except CantCompareError as error:
            found.problems.append(f"{name}: {error}")
            continue
        if after.failed() > before.failed() + FAILED_SHARE:
            found.failures.append(f"{name}: {after.failed():.1%} of the requests fail, {before.failed():.1%} before")
        for figure in FIGURES:
            values = before.values(figure), after.values(figure)
            if all(values):
                found.changes.append(Change(name, figure, tuple(values[0]), tuple(values[1])))
            elif values[0]:
                found.problems.append(f"{name}: {figure.name} is missing in the new file")
    return found


HEADINGS = ("row", "figure", "unit", "old", "new", "new / old", "runs", "by chance", "verdict")


def table(changes: Sequence[Change], threshold: float, single: float) -> str:
    """All figures, Markdown."""
    return aligned([HEADINGS, *(_cells(change, threshold, single) for change in changes)])


def _cells(change: Change, threshold: float, single: float) -> tuple[str, ...]:
    chance = change.chance
    return (
        change.row,
        change.figure.name,
        change.figure.unit,
        short(median(change.old)),
        short(median(change.new)),
        f"{change.ratio:.3f}",
        f"{len(change.old)}, {len(change.new)}",
        "" if chance is None else f"{chance:.3f}",
        change.verdict(threshold, single),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare two files of benchmark results.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=0.05, help="a part; worse by less is nothing (0.05)")
    parser.add_argument("--single", type=float, default=0.15, help="the same where repetitions are too few (0.15)")
    options = parser.parse_args(arguments)
    try:
        found = compare(*(by_row(read_results(path)) for path in (options.old, options.new)))
    except (OSError, ValueError, CantCompareError) as error:
        print(f"regress: {error}", file=sys.stderr)
        return 2
    if found.changes:
        print(table(found.changes, options.threshold, options.single))
    regressed = [change for change in found.changes if change.regressed(options.threshold, options.single)]
    for title, lines in (
        ("Not compared", found.problems),
        ("More failures", found.failures),
        ("New rows", found.added),
        ("Regressions", [f"{change.row}: {change.figure.name} {change.worse:+.1%} worse" for change in regressed]),
    ):
        if lines:
            print(f"\n{title}:", *lines, sep="\n- ")
    if regressed or found.failures:
        return 1
    return 2 if found.problems or not found.changes else 0


if __name__ == "__main__":
    sys.exit(main())
