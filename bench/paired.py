"""Interleaved pairs of measurements of two servers, and what else the machine did meanwhile.

Knows which scenario is measured, and nothing of how its figures are judged or shown.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.load import Metrics
from bench.opponents import Opponent
from bench.rows import ROWS, Result, evaluate, number
from bench.scenarios import Measure, Work, sides

MOST_DROPPED = 3
"""Disturbed pairs dropped at most, as a multiple of the pairs asked for; from then on every pair counts."""
COMPETING = "competing_cores"
SECONDS = "took_s"


@dataclass(frozen=True)
class Options:
    """What to run, from the command line."""

    work: Work
    pairs: int
    seed: int
    quiet: float
    patience: float
    redo_above: float
    aa: bool
    out: Path | None = None


@dataclass
class Samples:
    """Figures of both sides, pair by pair."""

    ours: list[Metrics] = field(default_factory=list)
    theirs: list[Metrics] = field(default_factory=list)
    disturbed: int = 0
    """Pairs that were dropped and measured again."""
    interrupted: bool = False

    def results(self, scenario: str, bars: bool) -> list[Result]:
        """The scenario's rows; without `bars` where they mean nothing."""
        rows = [row if bars else replace(row, bar=None) for row in ROWS[scenario]]
        return [
            # A server that runs already shows no memory.
            evaluate(row, *([one.get(row.metric, math.nan) for one in side] for side in (self.ours, self.theirs)))
            for row in rows
        ]

    def competing(self) -> list[float]:
        """Cores' worth of other processes' work, per measurement."""
        return [metrics[COMPETING] for metrics in (*self.ours, *self.theirs)]

    def as_json(self) -> dict[str, Any]:
        sides = {"ours": self.ours, "theirs": self.theirs}
        return {
            **{name: [{k: number(v) for k, v in one.items()} for one in side] for name, side in sides.items()},
            "disturbed": self.disturbed,
            "interrupted": self.interrupted,
        }


def measured(measure: Callable[[], Metrics], options: Options) -> Metrics:
    """One measurement, with the competing load beside it."""
    if options.quiet > 0:
        machine.wait_for_quiet(options.quiet, options.patience)
    meter = machine.Competition().begin()
    began = time.perf_counter()
    figures = measure()
    # The server is gone and waited for by now, so that its time is in our children's.
    return {**figures, SECONDS: time.perf_counter() - began, COMPETING: meter.end()}


def contestants(scenario: str, options: Options, opponent: Opponent) -> list[Measure]:
    """How to measure ours and theirs, or ours alone. With `--aa` both are theirs, if there are any."""
    ours, theirs = sides(scenario, options.work, opponent)
    if theirs is None:
        return [] if options.aa else [ours]
    return [theirs if options.aa else ours, theirs]


def run_pairs(scenario: str, options: Options, opponent: Opponent) -> Samples:
    """Interleaved pairs. Disturbed ones are dropped and measured again, within reason; an interrupt ends it."""
    turns = list(enumerate(contestants(scenario, options, opponent)))
    samples = Samples()
    try:
        while turns and len(samples.ours) < options.pairs:
            # The order follows the pairs that count, so that it alternates among them whatever is dropped.
            order = turns if len(samples.ours) % 2 == 0 else turns[::-1]
            may_drop = samples.disturbed < MOST_DROPPED * options.pairs
            seed = options.seed + len(samples.ours) + samples.disturbed
            pair = measure_pair([(side, partial(measure, seed)) for side, measure in order], options, may_drop)
            if pair is None:
                samples.disturbed += 1
                continue
            samples.ours.append(pair[0])
            samples.theirs += [pair[1]] if 1 in pair else []
            _progress(scenario, [pair[side] for side, _ in turns])
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


def measure_pair(
    sides_in_order: Sequence[tuple[int, Callable[[], Metrics]]], options: Options, may_drop: bool
) -> dict[int, Metrics] | None:
    """Figures of ours (0) and theirs (1); None as soon as one of them was disturbed too much."""
    pair: dict[int, Metrics] = {}
    for side, measure in sides_in_order:
        pair[side] = measured(measure, options)
        if may_drop and 0 < options.redo_above < pair[side][COMPETING]:
            print(f"  dropped: others used {pair[side][COMPETING]:.2f} cores", file=sys.stderr, flush=True)
            return None
    return pair


def _progress(scenario: str, pair: Sequence[Metrics]) -> None:
    first = ROWS[scenario][0]
    figures = " against ".join(f"{one[first.metric] * first.scale:.4g}" for one in pair)
    noise = " and ".join(f"{one[COMPETING]:.2f}" for one in pair)
    seconds = sum(one[SECONDS] for one in pair)
    print(
        f"  {scenario}: {first.title} {figures} {first.unit}, {seconds:.0f} s, others used {noise} cores",
        file=sys.stderr,
        flush=True,
    )
