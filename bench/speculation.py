"""Guessing tokens ahead: ForgeLM with and without, and llama-server's ways of doing it, on this machine.

    python -m bench.speculation                       every scenario, ten rounds each
    python -m bench.speculation --only edit,self      some of them
    python -m bench.speculation --draft PATH          another draft model than the model itself
    python -m bench.speculation --quick               small sizes, two rounds: does it run?
    python -m bench.speculation_host                  what it costs on the host, without a model

A round measures every mode of a scenario once, each on a server started for it alone, with the same texts; the next
round has other texts and the reverse order. Ratios are between two modes of one round, and their medians come with the
interval of `bench.stats`. All else that keeps it fair is as in `bench.compare`, whose `--quiet` and `--redo-above` it
has. "auto" is a profile's `speculation = "auto"`: look-up alone, where there is no GPU.

The tables by case have the medians of all figures. "right" is accepted / drafted; "per verification" the tokens that a
step with guesses yields, the one included that it would have yielded anyway; "steps / token" counts decode steps, of
each sequence. Several tokens may arrive as one piece, and ITL is the time between pieces. CPU is the engine process's,
user and system, with whatever its idle threads spun away. The last line of the output is one JSON document.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import hybrid, machine, paired, peers, scenarios, servers
from bench.load import Metrics
from bench.rows import Result, aligned, evaluate, number, short, table
from bench.speculation_runs import Work, measure
from bench.speculation_scenarios import SCENARIOS, Scenario
from bench.sse import AnswerError
from bench.stats import INTERVAL, ratio_of_pairs

COLUMNS: dict[str, tuple[str, float]] = {
    "tok/s": ("output_tok_s", 1.0),
    "decode tok/s": ("decode_tok_s", 1.0),
    "TTFT p50 ms": ("ttft_p50_s", 1e3),
    "ITL p50 ms": ("itl_p50_s", 1e3),
    "ITL p99 ms": ("itl_p99_s", 1e3),
    "drafted / token": ("drafted_per_token", 1.0),
    "right %": ("acceptance", 100.0),
    "per verification": ("tokens_per_verification", 1.0),
    "steps / token": ("steps_per_token", 1.0),
    "CPU ms / token": ("cpu_s_per_token", 1e3),
}
"""Heading → figure and scale, of a case."""
MEMORY: dict[str, str] = {"RSS MB": "engine_rss_mb", "VRAM MB": "vram_mb"}
"""Heading → figure, of a whole measurement; shown as what is more than the first mode's."""


@dataclass
class Samples:
    """Figures by mode, round by round."""

    modes: dict[str, list[Metrics]]
    disturbed: int = 0
    interrupted: bool = field(default=False)

    @property
    def rounds(self) -> int:
        """Complete ones."""
        return min(map(len, self.modes.values()))

    def of(self, mode: str, metric: str) -> list[float]:
        return [figures[metric] for figures in self.modes[mode]]


def run_rounds(scenario: Scenario, work: Work, options: paired.Options) -> Samples:
    """Rounds of all modes; disturbed ones are dropped and measured again, within reason. An interrupt ends it."""
    samples = Samples({mode: [] for mode in scenario.modes})
    turns = list(enumerate(scenario.modes))
    try:
        while samples.rounds < options.pairs:
            order = turns if samples.rounds % 2 == 0 else turns[::-1]
            seed = options.seed + samples.rounds + samples.disturbed
            may_drop = samples.disturbed < paired.MOST_DROPPED * options.pairs
            measures = [(place, partial(measure, mode, scenario.cases, work, seed)) for place, mode in order]
            found = paired.measure_pair(measures, options, may_drop)
            if found is None:
                samples.disturbed += 1
                continue
            for place, mode in turns:
                samples.modes[mode].append(found[place])
            _progress(scenario, samples)
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


def _progress(scenario: Scenario, samples: Samples) -> None:
    last = {mode: figures[-1] for mode, figures in samples.modes.items()}
    metric = f"{scenario.cases[0].name}: output_tok_s"
    pace = ", ".join(f"{mode} {figures[metric]:.4g}" for mode, figures in last.items())
    seconds = sum(figures[paired.SECONDS] for figures in last.values())
    noise = max(figures[paired.COMPETING] for figures in last.values())
    print(
        f"  round {samples.rounds}: tok/s {pace}; {seconds:.0f} s, others used up to {noise:.2f} cores",
        file=sys.stderr,
        flush=True,
    )


# --- report ---


def results(scenario: Scenario, samples: Samples) -> list[Result]:
    """The comparisons."""
    found = []
    for bar in scenario.bars:
        theirs = samples.of(bar.base, bar.metric) if bar.base else []
        found.append(evaluate(bar.named(), samples.of(bar.mode, bar.metric), theirs))
    return found


def case_table(scenario: Scenario, samples: Samples, case: str) -> str:
    """All modes' figures in one case: medians, and the ratio of tok/s to the first mode's."""
    base = scenario.modes[0]
    memory = {heading: metric for heading, metric in MEMORY.items() if _known(samples, base, metric)}
    lines = [["mode", f"tok/s of {base}'s", *COLUMNS, *(f"+ {heading}" for heading in memory)]]
    for mode in scenario.modes:
        pace = f"{case}: output_tok_s"
        ratio = ratio_of_pairs(samples.of(mode, pace), samples.of(base, pace))
        interval = "" if ratio.low is None else f" [{short(ratio.low)}, {short(ratio.high)}]"
        figures = (scale * _middle(samples.of(mode, f"{case}: {metric}")) for metric, scale in COLUMNS.values())
        more = (_middle(samples.of(mode, metric)) - _middle(samples.of(base, metric)) for metric in memory.values())
        lines.append([mode, f"{short(ratio.median)}{interval}", *map(short, figures), *map(short, more)])
    return aligned(lines)


def _known(samples: Samples, mode: str, metric: str) -> bool:
    return not math.isnan(_middle(samples.of(mode, metric)))


def _middle(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan


def report(name: str, scenario: Scenario, samples: Samples) -> dict[str, Any]:
    """Print the scenario's tables; returns its part of the JSON line."""
    raw = {mode: [{k: number(v) for k, v in one.items()} for one in all_] for mode, all_ in samples.modes.items()}
    found = results(scenario, samples) if samples.rounds else []
    document = {"rows": [result.as_json() for result in found], "samples": raw, "disturbed": samples.disturbed}
    if not samples.rounds:
        return document
    print(f"\n## {name}: {scenario.title}\n")
    for case in scenario.cases:
        print(f"{case.name}:\n\n{case_table(scenario, samples, case.name)}\n")
    if found:
        print(table(found) + "\n")
    competing = [figures[paired.COMPETING] for all_ in samples.modes.values() for figures in all_]
    print(
        f"{samples.rounds} rounds; others used {median(competing):.2f} cores (median), {max(competing):.2f} (most); "
        f"{samples.disturbed} rounds dropped as disturbed{', then interrupted' if samples.interrupted else ''}.",
        flush=True,
    )
    return document


# --- command line ---


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="comma-separated: " + ", ".join(SCENARIOS))
    parser.add_argument("--modes", default="", help="comma-separated: these of each scenario's modes alone (all)")
    parser.add_argument("--pairs", type=int, default=None, help="rounds per scenario (10; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file (the starter); scenarios of hybrids too")
    parser.add_argument("--draft", type=Path, default=None, help="draft model (the model itself)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192, help="KV cells shared by all slots")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the texts (from the clock)")
    parser.add_argument("--sdist", type=Path, default=None, help="llama-cpp-python sdist to build llama-server from")
    quiet = "wait before each measurement until others use less (0.1; 0 never waits)"
    parser.add_argument("--quiet", type=float, default=0.1, metavar="CORES", help=quiet)
    parser.add_argument("--patience", type=float, default=120.0, metavar="SECONDS", help="for --quiet (120)")
    redo = "measure rounds again during which others used more (0.1; 0 keeps every round)"
    parser.add_argument("--redo-above", type=float, default=0.1, metavar="CORES", help=redo)
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Everything asked for; returns the JSON document. Profiles are written into `directory`."""
    starter = (arguments.model or servers.default_model()).resolve()
    built = peers.ensure(arguments.sdist)
    about = machine.describe(starter)
    print(f"{about['cpu']}, {about['cores']} cores; commit {about['commit']}; {starter.name}", flush=True)
    pairs = arguments.pairs or (2 if arguments.quick else 10)
    document: dict[str, Any] = {"bench": "speculation", "pairs": pairs, "seed": arguments.seed, "interval": INTERVAL}
    found: dict[str, Any] = {}
    for name in arguments.only.split(","):
        scenario = SCENARIOS[name].of_modes(arguments.modes.split(",")) if arguments.modes else SCENARIOS[name]
        own = arguments.model is None and scenario.hybrid
        model = hybrid.model(starter) if own else starter
        settings = servers.Settings(model, arguments.threads, arguments.context)
        draft = (arguments.draft or model).resolve()
        work = Work(settings, draft, built, directory, *((24, 1) if arguments.quick else ()))
        options = paired.Options(
            scenarios.Work(settings),
            pairs,
            arguments.seed,
            arguments.quiet,
            arguments.patience,
            arguments.redo_above,
            aa=False,
        )
        samples = run_rounds(scenario, work, options)
        found[name] = report(name, scenario, samples)
        if samples.interrupted:
            break
    return {**document, "machine": about, "scenarios": found}


def main() -> int:
    """Exit status: 1 where a server failed, 2 for an unknown scenario."""
    arguments = parse_arguments()
    servers.end_on_signals()
    unknown = set(arguments.only.split(",")) - set(SCENARIOS)
    if unknown:
        known = ", ".join(SCENARIOS)
        print(f"speculation: no scenario {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        return 2
    try:
        with machine.sole_benchmark(), tempfile.TemporaryDirectory() as directory:
            document = run(arguments, Path(directory))
    except (peers.PeerError, servers.ServerError, AnswerError, OSError, subprocess.CalledProcessError) as error:
        print(f"speculation: {error}", file=sys.stderr)
        return 1
    print("\n" + json.dumps(document))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
