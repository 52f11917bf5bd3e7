"""ForgeLM against llama.cpp's own programs, side by side on this machine.

    python -m bench.compare                        every scenario, ten pairs each (about an hour on two cores)
    python -m bench.compare --only http8,mixed     some of them
    python -m bench.compare --aa --only http8      llama-server against itself: what the noise alone looks like
    python -m bench.compare --quick                small sizes, two pairs: does it run?

How it is kept fair:
- Both programs come from one set of sources with one set of flags (`bench.peers`), and get the same model, threads,
  context and slots; the KV cache is unified on both sides, and prompt caches can't help since no prompt repeats.
- Measurements come in pairs with the same prompts, and the order within a pair alternates (A B, B A, …), so that slow
  drift of the machine falls on both sides alike. The figure is the median of the pairs' ratios; `bench.stats` says how
  its interval comes about.
- **Only one server lives at a time**, started afresh for each measurement. With both up, the idle one could still
  take CPU from the other (llama.cpp's threads may spin, `OMP_WAIT_POLICY=active` spins for minutes); and one start per
  run would make one process's luck with memory layout look like a property of the program.
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
import asyncio
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
from bench.load import Metrics, Prompts, Sizes, clients, decoders_beside_prompts
from bench.rows import ROWS, TITLES, Result, evaluate, number, table
from bench.sse import AnswerError, complete
from bench.stats import INTERVAL

Measure = Callable[[int], Metrics]
"""Seed → figures of one side."""

MOST_DROPPED = 3
"""Disturbed pairs dropped at most, as a multiple of the pairs asked for; from then on every pair counts."""
COMPETING = "competing_cores"
SECONDS = "took_s"


@dataclass(frozen=True)
class Options:
    """What to run, from the command line."""

    settings: servers.Settings
    sizes: Sizes
    work: engine_decode.Work
    pairs: int
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


def measure_server(kind: servers.Kind, scenario: str, sizes: Sizes, seed: int) -> Metrics:
    """Start a server, run one scenario on it, stop it."""
    with servers.running(kind) as server:
        if scenario == "start":
            return {"first_token_s": servers.first_token_seconds(server)}
        prompts = Prompts(seed)
        asyncio.run(complete(server.endpoint, prompts.take(32), 8))
        if scenario == "mixed":
            return asyncio.run(decoders_beside_prompts(server.endpoint, prompts, sizes))
        if scenario == "http1":
            return asyncio.run(clients(server.endpoint, prompts, 1, sizes.one_client_requests, sizes))
        figures = asyncio.run(clients(server.endpoint, prompts, 8, sizes.rounds, sizes))
        return {**figures, **server.memory_mb()}


def measure_ours(scenario: str, options: Options, seed: int) -> Metrics:
    """One measurement of ForgeLM."""
    if scenario == "decode":
        return engine_decode.measure(options.settings, options.work)
    return measure_server(servers.forgelm(options.settings), scenario, options.sizes, seed)


def measure_theirs(scenario: str, options: Options, built: peers.Peers, seed: int) -> Metrics:
    """One measurement of llama.cpp's program for the scenario."""
    if scenario == "decode":
        return engine_decode.measure_peer(options.settings, options.work, built.batched_bench)
    return measure_server(servers.llama_server(options.settings, built.server), scenario, options.sizes, seed)


def sides(scenario: str, options: Options, built: peers.Peers) -> tuple[Measure, Measure]:
    """How to measure ours and theirs. With `--aa` both are theirs."""
    ours = partial(measure_ours, scenario, options)
    theirs = partial(measure_theirs, scenario, options, built)
    return (theirs if options.aa else ours), theirs


def measured(measure: Callable[[], Metrics], options: Options) -> Metrics:
    """One measurement, with the competing load beside it."""
    if options.quiet > 0:
        machine.wait_for_quiet(options.quiet, options.patience)
    meter = machine.Competition().begin()
    began = time.perf_counter()
    figures = measure()
    # The server is gone and waited for by now, so that its time is in our children's.
    return {**figures, SECONDS: time.perf_counter() - began, COMPETING: meter.end()}


def run_pairs(scenario: str, options: Options, built: peers.Peers) -> Samples:
    """Interleaved pairs. Disturbed ones are dropped and measured again, within reason; an interrupt ends it."""
    measure = sides(scenario, options, built)
    samples = Samples()
    try:
        while len(samples.ours) < options.pairs:
            # The order follows the pairs that count, so that it alternates among them whatever is dropped.
            order = (0, 1) if len(samples.ours) % 2 == 0 else (1, 0)
            may_drop = samples.disturbed < MOST_DROPPED * options.pairs
            seed = 1000 + len(samples.ours) + samples.disturbed
            pair = measure_pair([(side, partial(measure[side], seed)) for side in order], options, may_drop)
            if pair is None:
                samples.disturbed += 1
                continue
            samples.ours.append(pair[0])
            samples.theirs.append(pair[1])
            _progress(scenario, pair)
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


def _progress(scenario: str, pair: dict[int, Metrics]) -> None:
    first = ROWS[scenario][0]
    ours, theirs = (pair[side][first.metric] * first.scale for side in (0, 1))
    noise = [pair[side][COMPETING] for side in (0, 1)]
    seconds = sum(pair[side][SECONDS] for side in (0, 1))
    print(
        f"  {scenario}: {first.title} {ours:.4g} against {theirs:.4g} {first.unit}, {seconds:.0f} s, "
        f"others used {noise[0]:.2f} and {noise[1]:.2f} cores",
        file=sys.stderr,
        flush=True,
    )


def report(scenario: str, samples: Samples, options: Options) -> dict[str, Any]:
    """Print the scenario's table; returns its part of the JSON line."""
    if not samples.ours:
        return {"samples": samples.as_json()}
    results = samples.results(scenario, options.aa)
    competing = samples.competing()
    versus = " [A/A: llama.cpp on both sides]" if options.aa else ""
    print(f"\n## {TITLES[scenario]}{versus}\n\n{table(results)}\n")
    print(
        f"{len(samples.ours)} pairs; others used {median(competing):.2f} cores (median), {max(competing):.2f} (most); "
        f"{samples.disturbed} pairs dropped as disturbed{', then interrupted' if samples.interrupted else ''}.",
        flush=True,
    )
    return {"rows": [result.as_json() for result in results], "samples": samples.as_json()}


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
    options = Options(
        settings=servers.Settings(model, arguments.threads, arguments.context),
        sizes=Sizes.quick() if arguments.quick else Sizes(),
        work=engine_decode.Work.quick() if arguments.quick else engine_decode.Work(),
        pairs=arguments.pairs or (2 if arguments.quick else 10),
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
        "threads": options.settings.threads,
        "context": options.settings.context,
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
