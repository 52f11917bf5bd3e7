"""ForgeLM against llama.cpp's own programs, or another server, side by side on this machine.

    python -m bench.compare                        every scenario, ten pairs each (1½ hours on two cores)
    python -m bench.compare --only http8,mixed     some of them
    python -m bench.compare --only shared,turns,shared-hybrid,turns-hybrid --peer-flags best
    python -m bench.compare --aa --only http8      llama-server against itself: what the noise alone looks like
    python -m bench.compare --quick                small sizes, two pairs: does it run?
    python -m bench.compare --peer mistral.rs --only http1
    python -m bench.compare --url vllm=http://127.0.0.1:8000/v1 --chat

How it is kept fair:
- llama.cpp's programs and our engine come from one set of sources with one set of flags (`bench.peers`); how the other
  peers are built is in `bench.opponents`. All get the same model, threads, context and slots. Where no prompt repeats,
  the KV cache is unified on both sides and llama-server's prompt caches, which can't help, are off.
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

The last line of the output is one JSON document with everything, each pair's figures included. `--output FILE` adds one
line per measurement in the form of `forgelm bench`, for `python -m bench.regress` and `forgelm bench report`. Ctrl-C
(or SIGTERM) ends a run early and still reports the pairs that are complete.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import engine_decode, machine, opponents, peers, record, servers
from bench.opponents import Opponent
from bench.paired import Options, Samples, run_pairs
from bench.rows import ROWS, TITLES, table
from bench.scenarios import Work, impossible, uses_peer_flags
from bench.sse import AnswerError
from bench.stats import INTERVAL
from forgelm import log


def report(scenario: str, samples: Samples, options: Options, opponent: Opponent) -> dict[str, Any]:
    """Print the scenario's table; returns its part of the JSON line."""
    if not samples.ours:
        return {"samples": samples.as_json()}
    # The bars are what is wanted against the reference.
    results = samples.results(scenario, bars=not options.aa and opponent.name == opponents.REFERENCE)
    competing = samples.competing()
    print(f"\n## {TITLES[scenario]}{_versus(scenario, options, opponent)}\n\n{table(results)}\n")
    print(
        f"{len(samples.ours)} pairs; others used {median(competing):.2f} cores (median), {max(competing):.2f} (most); "
        f"{samples.disturbed} pairs dropped as disturbed{', then interrupted' if samples.interrupted else ''}.",
        flush=True,
    )
    return {"rows": [result.as_json() for result in results], "samples": samples.as_json()}


def _versus(scenario: str, options: Options, opponent: Opponent) -> str:
    """What the title doesn't say about the other side."""
    reference = opponent.name == opponents.REFERENCE
    flags = f" [llama-server's flags: {options.work.peer_flags}]" if reference and uses_peer_flags(scenario) else ""
    return f", against {opponent.name}{flags}" + (" [A/A: on both sides]" if options.aa else "")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description="ForgeLM against another server on this machine."
    )
    parser.add_argument("--only", default="", help="scenarios, comma-separated (all): " + ", ".join(ROWS))
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer", choices=opponents.NAMES, default=opponents.REFERENCE, help="(llama-server)")
    url = "a server that runs already; its settings are what they are, its answers may be shorter than asked"
    peer.add_argument("--url", metavar="NAME=http://HOST:PORT/v1", help=url)
    parser.add_argument("--chat", action="store_true", help="ask chats also where plain completions would do")
    parser.add_argument("--output", type=Path, metavar="FILE", help="add each measurement as a line for bench.regress")
    parser.add_argument("--pairs", type=int, default=None, help="pairs per scenario (10; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--aa", action="store_true", help="the peer on both sides: shows the noise")
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
    """Everything asked for; returns the JSON document. Raises `PeerError` and what measurements raise."""
    model = (arguments.model or servers.default_model()).resolve()
    settings = servers.Settings(model, arguments.threads, arguments.context)
    work = Work(settings, peer_flags=arguments.peer_flags, chat=arguments.chat)
    options = Options(
        work=work.quick() if arguments.quick else work,
        pairs=arguments.pairs or (2 if arguments.quick else 10),
        seed=arguments.seed,
        quiet=arguments.quiet,
        patience=arguments.patience,
        redo_above=arguments.redo_above,
        aa=arguments.aa,
        out=arguments.output,
    )
    url = arguments.url
    opponent = opponents.by_address(url) if url else opponents.find(arguments.peer, arguments.sdist)
    names = chosen(arguments.only, opponent)
    about = machine.describe(model)
    print(f"{about['cpu']}, {about['cores']} cores; commit {about['commit']}; {model.name}", flush=True)
    return {
        "bench": "compare",
        "began": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "peer": opponent.name,
        "aa": options.aa,
        "pairs": options.pairs,
        "seed": options.seed,
        "peer_flags": options.work.peer_flags,
        "threads": settings.threads,
        "context": settings.context,
        "interval": INTERVAL,
        "machine": about,
        "scenarios": run_all(names, options, opponent),
    }


def chosen(only: str, opponent: Opponent) -> list[str]:
    """The scenarios to run. Raises `PeerError` for one that was asked for and can't be."""
    names = only.split(",") if only else [name for name in ROWS if not impossible(name, opponent)]
    for name in names:
        reason = impossible(name, opponent)
        if reason:
            raise peers.PeerError(f"no {name}: {reason}")
    return names


def run_all(names: Sequence[str], options: Options, opponent: Opponent) -> dict[str, Any]:
    """Scenario → its part of the document, until one is interrupted."""
    scenarios: dict[str, Any] = {}
    for name in names:
        samples = run_pairs(name, options, opponent)
        scenarios[name] = report(name, samples, options, opponent)
        if options.out is not None:
            record.write(options.out, name, options.work, opponent, samples.ours, samples.theirs)
        if samples.interrupted:
            break
    return scenarios


def main() -> int:
    arguments = parse_arguments()
    servers.end_on_signals()
    log.configure("warning", process="bench")
    unknown = set(filter(None, arguments.only.split(","))) - set(ROWS)
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
