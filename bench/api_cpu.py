"""CPU time of the API process per streamed token, with the engine faked.

    python -m bench.api_cpu                          under a minute
    python -m bench.api_cpu --instrumentation        what metrics take of it; two minutes

`forgelm serve` runs as always, but its engine process makes tokens up at a fixed pace instead of computing them
(`FORGELM_FAKE_ENGINE`), so that all that is left is the API's own work: HTTP, template, tokenizing the prompt,
detokenizing, stop strings, JSON, SSE, metrics. The model file is only read for its vocabulary and template. This
process is the eight clients; the figure is user and system time of the API process alone, from /proc, over tokens.
With `--instrumentation` a second server runs whose metrics count nothing, and the two are measured in turns.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from bench import machine
from bench.load import Prompts, Sizes, clients
from bench.rows import Row, evaluate, number, table
from bench.servers import Kind, ServerError, Settings, default_model, end_on_signals, forgelm, running
from bench.sse import AnswerError, Endpoint

CLIENTS = 8
SIZES = Sizes(prompt=128, answer=256)
ROW = Row("API process CPU per token", "api_cpu_us", "ours", 110.0, False, "µs")
DIFFERENCE = Row("metrics, API process CPU per token", "metrics_cpu_us", "difference", 5.0, False, "µs")


def fake_engine(settings: Settings, step: float) -> Kind:
    """ForgeLM with an engine that only pretends, `step` seconds a step."""
    fake = {"step": step, "context": settings.context, "slots": settings.parallel}
    kind = forgelm(settings)
    return replace(kind, name="forgelm with a fake engine", environment={"FORGELM_FAKE_ENGINE": json.dumps(fake)})


def without_metrics(kind: Kind) -> Kind:
    """The same server, whose metrics count nothing."""
    command = tuple("bench.unmeasured" if part == "forgelm" else part for part in kind.command)
    return replace(kind, name="the same without metrics", command=command)


def measure(endpoint: Endpoint, pid: int, rounds: int, seed: int) -> float:
    """Microseconds of process `pid` per token, over `CLIENTS` × `rounds` answers."""
    before = machine.cpu_seconds(pid)
    metrics = asyncio.run(clients(endpoint, Prompts(seed), CLIENTS, rounds, SIZES))
    return 1e6 * (machine.cpu_seconds(pid) - before) / metrics["tokens"]


def run(arguments: argparse.Namespace) -> list[float]:
    """One figure per repeat, after a warm-up that isn't counted."""
    settings = Settings(arguments.model.resolve(), context=8192, parallel=CLIENTS)
    with running(fake_engine(settings, arguments.step)) as server:
        endpoint = replace(server.endpoint, chat=not arguments.completions)
        pid = server.process.pid
        measure(endpoint, pid, 1, seed=0)
        return [measure(endpoint, pid, arguments.rounds, seed) for seed in range(1, arguments.repeats + 1)]


def run_pairs(arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Figures with metrics and without, in turns that begin with either; after a warm-up of both."""
    settings = Settings(arguments.model.resolve(), context=8192, parallel=CLIENTS)
    kind = fake_engine(settings, arguments.step)
    figures: tuple[list[float], list[float]] = [], []
    with running(kind) as measured, running(without_metrics(kind)) as bare:
        servers = [
            (replace(server.endpoint, chat=not arguments.completions), server.process.pid, found)
            for server, found in zip((measured, bare), figures, strict=True)
        ]
        for endpoint, pid, _ in servers:
            measure(endpoint, pid, 1, seed=0)
        for seed in range(1, arguments.repeats + 1):
            for endpoint, pid, found in servers if seed % 2 else servers[::-1]:
                found.append(measure(endpoint, pid, arguments.rounds, seed))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of the API process per streamed token.")
    parser.add_argument("--model", type=Path, default=default_model(), help="GGUF file: for vocabulary and template")
    parser.add_argument("--step", type=float, default=0.01, help="seconds per step of the fake engine")
    parser.add_argument("--rounds", type=int, default=3, help="answers per client and repeat")
    parser.add_argument("--repeats", type=int, default=0, help="0 is 6, or 10 pairs")
    parser.add_argument("--completions", action="store_true", help="/v1/completions instead of chat")
    parser.add_argument("--instrumentation", action="store_true", help="with metrics and without, in pairs")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (10 if arguments.instrumentation else 6)
    end_on_signals()
    try:
        with machine.sole_benchmark():
            figures, bare = run_pairs(arguments) if arguments.instrumentation else (run(arguments), [])
    except (ServerError, AnswerError, OSError) as error:
        print(f"api_cpu: {error}", file=sys.stderr)
        return 1
    result = evaluate(DIFFERENCE if bare else ROW, figures, bare)
    print(table([result]))
    about = machine.describe(arguments.model)
    line = {"bench": "api_cpu", "machine": about, "row": result.as_json(), "figures": [*map(number, figures)]}
    print(json.dumps(line | ({"without": [*map(number, bare)]} if bare else {})))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
