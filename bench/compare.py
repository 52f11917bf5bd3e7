"""ForgeLM against llama.cpp's own programs, side by side on this machine.

    python -m bench.compare                        every scenario, ten pairs each (1½ hours on two cores)
    python -m bench.compare --only http8,mixed     some of them
    python -m bench.compare --only shared,turns,shared-hybrid,turns-hybrid --peer-flags best
    python -m bench.compare --aa --only http8      llama-server against itself: what the noise alone looks like
    python -m bench.compare --quick                small sizes, two pairs: does it run?

How it is kept fair:
- Both programs come from one set of sources with one set of flags (`bench.peers`), and get the same model, threads,
  context and slots. Where no prompt repeats, the KV cache is unified on both sides and llama-server's prompt caches,
  which can't help, are off.
- Where prompts begin alike (shared, turns), llama-server runs as it comes, or with `--peer-flags best` as suits it best
  there (`bench.servers.PEER_FLAGS`). Both are asked through the chat API, so both see where messages begin, and both
  counts of cached tokens, usage's and timings', must agree. Texts depend on `--seed`, which is the clock's unless
  given: no server can know a text from before.
- Measurements come in pairs with the same prompts, and the order within a pair alternates (A B, B A, …), so that slow
  drift of the machine falls on both sides alike. The figure is the median of the pairs' ratios; `bench.stats` says how
  its interval comes about.
- **Only one server lives at a time**, started afresh for each measurement, so that its caches are empty. With both up,
  the idle one could still take CPU from the other (llama.cpp's threads may spin, `OMP_WAIT_POLICY=active` spins for
  minutes); and one start per run would make one process's luck with memory layout look like a property of the program.
- The load generator is this process; it is the same for both sides, and takes little (`bench.sse`).
- The work that other processes did meanwhile is measured and printed. One busy neighbour can cost two spinning threads
  nine tenths of their speed, so `--quiet` waits for a quiet machine before each measurement and `--redo-above` measures
  disturbed pairs again (within reason). Both look at the others' load, never at results.
- decode: `llama-batched-bench` feeds random tokens and samples nothing. The engine's figure includes its sampling, its
  scheduling and its message per step.

The last line of the output is one JSON document with everything, each pair's figures included. Ctrl-C (or SIGTERM)
ends a run early and still reports the pairs that are complete.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import engine_decode, machine, peers, servers
from bench.load import Metrics
from bench.rows import ROWS, TITLES, Result, evaluate, number, table
from bench.scenarios import Measure, Work, sides, uses_peer_flags
from bench.sse import AnswerError
from bench.stats import INTERVAL

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


@dataclass
class Samples:
    """Figures of both sides, pair by pair."""

    ours: list[Metrics] = field(default_factory=list)
    theirs: list[Metrics] = field(default_factory=list)
    disturbed: int = 0
    """Pairs that were dropped and measured again."""
    interrupted: bool = False

    def results(self, scenario: str, aa: bool) -> list[Result]:
        """The scenario's rows; without bars in an A/A run, where they mean nothing."""
        rows = [replace(row, bar=None) if aa else row for row in ROWS[scenario]]
        return [
            evaluate(row, [one[row.metric] for one in self.ours], [one[row.metric] for one in self.theirs])
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


def contestants(scenario: str, options: Options, built: peers.Peers) -> list[Measure]:
    """How to measure ours and theirs, or ours alone. With `--aa` both are theirs, if there are any."""
    ours, theirs = sides(scenario, options.work, built)
    if theirs is None:
        return [] if options.aa else [ours]
    return [theirs if options.aa else ours, theirs]


def run_pairs(scenario: str, options: Options, built: peers.Peers) -> Samples:
    """Interleaved pairs. Disturbed ones are dropped and measured again, within reason; an interrupt ends it."""
    turns = list(enumerate(contestants(scenario, options, built)))
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


def report(scenario: str, samples: Samples, options: Options) -> dict[str, Any]:
    """Print the scenario's table; returns its part of the JSON line."""
    if not samples.ours:
        return {"samples": samples.as_json()}
    results = samples.results(scenario, options.aa)
    competing = samples.competing()
    print(f"\n## {TITLES[scenario]}{_versus(scenario, options)}\n\n{table(results)}\n")
    print(
        f"{len(samples.ours)} pairs; others used {median(competing):.2f} cores (median), {max(competing):.2f} (most); "
        f"{samples.disturbed} pairs dropped as disturbed{', then interrupted' if samples.interrupted else ''}.",
        flush=True,
    )
    return {"rows": [result.as_json() for result in results], "samples": samples.as_json()}


def _versus(scenario: str, options: Options) -> str:
    """What the title doesn't say about the other side."""
    flags = f" [llama-server's flags: {options.work.peer_flags}]" if uses_peer_flags(scenario) else ""
    return flags + (" [A/A: llama.cpp on both sides]" if options.aa else "")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description="ForgeLM against llama.cpp's programs on this machine."
    )
    parser.add_argument("--only", default=",".join(ROWS), help="scenarios, comma-separated: " + ", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=None, help="pairs per scenario (10; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--aa", action="store_true", help="llama.cpp on both sides: shows the noise")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file (the starter)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192, help="KV cells shared by all slots")
    flags = "llama-server's flags where prompts begin alike (default)"
    parser.add_argument("--peer-flags", choices=("default", "best"), default="default", help=flags)
    seed = "of the texts; the next pair has the next one (from the clock, so that no text was ever sent before)"
    parser.add_argument("--seed", type=int, default=int(time.time()), help=seed)
    parser.add_argument("--sdist", type=Path, default=None, help="llama-cpp-python sdist to build the peers from")
    quiet = "wait before each measurement until others use less (0.1; 0 never waits)"
    parser.add_argument("--quiet", type=float, default=0.1, metavar="CORES", help=quiet)
    parser.add_argument("--patience", type=float, default=120.0, metavar="SECONDS", help="for --quiet (120)")
    redo = "measure pairs again during which others used more (0.1; 0 keeps every pair)"
    parser.add_argument("--redo-above", type=float, default=0.1, metavar="CORES", help=redo)
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything asked for; returns the JSON document."""
    model = (arguments.model or servers.default_model()).resolve()
    settings = servers.Settings(model, arguments.threads, arguments.context)
    work = Work(settings, peer_flags=arguments.peer_flags)
    options = Options(
        work=work.quick() if arguments.quick else work,
        pairs=arguments.pairs or (2 if arguments.quick else 10),
        seed=arguments.seed,
        quiet=arguments.quiet,
        patience=arguments.patience,
        redo_above=arguments.redo_above,
        aa=arguments.aa,
    )
    built = peers.ensure(arguments.sdist)
    about = machine.describe(model)
    print(f"{about['cpu']}, {about['cores']} cores; commit {about['commit']}; {model.name}", flush=True)
    began = time.strftime("%Y-%m-%dT%H:%M:%S")
    scenarios: dict[str, Any] = {}
    for name in arguments.only.split(","):
        samples = run_pairs(name, options, built)
        scenarios[name] = report(name, samples, options)
        if samples.interrupted:
            break
    return {
        "bench": "compare",
        "began": began,
        "aa": options.aa,
        "pairs": options.pairs,
        "seed": options.seed,
        "peer_flags": options.work.peer_flags,
        "threads": settings.threads,
        "context": settings.context,
        "interval": INTERVAL,
        "machine": about,
        "scenarios": scenarios,
    }


def main() -> int:
    arguments = parse_arguments()
    servers.end_on_signals()
    unknown = set(arguments.only.split(",")) - set(ROWS)
    if unknown:
        print(f"compare: no scenario {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    try:
        with machine.sole_benchmark():
            document = run(arguments)
    except (peers.PeerError, servers.ServerError, engine_decode.DecodeError, AnswerError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"compare: {error}\n{error.stderr}", file=sys.stderr)
        return 1
    print("\n" + json.dumps(document))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
