"""What `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` do to decode steps, alone and beside other work.

    python -m bench.omp_wait                         about eight minutes on two cores

llama.cpp's threads meet at a barrier after each node of the graph, some hundreds of times a step. How long they spin
there before they sleep is libgomp's to decide, once, from the environment: so each setting is a process of its own,
running a plain ctypes decode loop with the greedy choice in NumPy, and the settings take turns, round after round.

The neighbours imitate the API process and its clients. `light` is a tenth of a core in bursts of 0.3 ms, `half` is half
a core in bursts of 1.7 ms, `busy` never sleeps.
"""

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.rows import number
from bench.servers import default_model, end_on_signals
from bench.stats import percentile

SETTINGS: dict[str, dict[str, str]] = {
    "unset": {},
    "active": {"OMP_WAIT_POLICY": "active"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 100000": {"GOMP_SPINCOUNT": "100000"},
}
NEIGHBOURS: dict[str, tuple[float, float] | None] = {
    "alone": None,
    "light": (0.0003, 0.0027),
    "half": (0.0017, 0.0017),
    "busy": (1.0, 0.0),
}
"""Name → seconds busy and seconds asleep, over and over. No divisors of the kernel's 4 ms tick: in step with it, the
neighbour's time in /proc/stat, which is sampled, and in its own accounts, which are exact, differed by a fifth."""
BATCHES = (1, 8)
PROMPT = 32
STEPS = {1: 160, 8: 60}
TRIES = 12
MOST_SECONDS = 6.0
"""Per batch size; the worst settings would take minutes beside a neighbour."""


@dataclass(frozen=True)
class Steps:
    """One run's step times in seconds, and the CPU seconds the process used for them."""

    batch: int
    seconds: list[float]
    cpu: float

    def rate(self) -> float:
        """Tokens per second."""
        return self.batch * len(self.seconds) / sum(self.seconds)


class DecodeLoop:
    """llama.cpp through the low-level bindings, with nothing of ForgeLM in between."""

    def __init__(self, model: Path, threads: int, sequences: int) -> None:
        import llama_cpp.llama_cpp as bindings
        import numpy as np

        self._l, self._np = bindings, np
        self._silence = bindings.llama_log_callback(lambda *_: None)
        bindings.llama_log_set(self._silence, None)
        bindings.llama_backend_init()
        self._model = bindings.llama_model_load_from_file(str(model).encode(), bindings.llama_model_default_params())
        settings = bindings.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 8192, 512, 512
        settings.n_seq_max, settings.kv_unified = sequences, True
        settings.n_threads = settings.n_threads_batch = threads
        self._context = bindings.llama_init_from_model(self._model, settings)
        self._vocabulary = bindings.llama_vocab_n_tokens(bindings.llama_model_get_vocab(self._model))
        self._batch = bindings.llama_batch_init(512, 0, 1)

    def run(self, batch: int, steps: int) -> Steps:
        """Prefill `batch` sequences, then time up to `steps` decodes of all of them."""
        self._l.llama_memory_clear(self._l.llama_get_memory(self._context), False)
        tokens = [100 + 37 * sequence for sequence in range(batch)]
        for sequence in range(batch):
            self._decode([(100 + sequence * PROMPT + i, i, sequence) for i in range(PROMPT)])
        seconds: list[float] = []
        cpu, until = time.process_time(), time.perf_counter() + MOST_SECONDS
        while len(seconds) < steps and time.perf_counter() < until:
            began = time.perf_counter()
            position = PROMPT + len(seconds)
            self._decode([(token, position, sequence) for sequence, token in enumerate(tokens)])
            tokens = [self._greedy(row) for row in range(batch)]
            seconds.append(time.perf_counter() - began)
        return Steps(batch, seconds, time.process_time() - cpu)

    def _decode(self, rows: list[tuple[int, int, int]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, 1
            batch.seq_id[i][0] = sequence
        if self._l.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self._l.llama_synchronize(self._context)

    def _greedy(self, row: int) -> int:
        logits = self._l.llama_get_logits_ith(self._context, row)
        return int(self._np.ctypeslib.as_array(ctypes.cast(logits, self._float_p), (self._vocabulary,)).argmax())

    _float_p = ctypes.POINTER(ctypes.c_float)


def child(model: Path, threads: int) -> None:
    """Run one setting (the environment says which) and print its step times as JSON."""
    loop = DecodeLoop(model, threads, max(BATCHES))
    loop.run(max(BATCHES), 3)
    print(json.dumps([vars(loop.run(batch, STEPS[batch])) for batch in BATCHES]))


def neighbour(busy: float, asleep: float) -> None:
    """Work and sleep in turns until killed."""
    while True:
        until = time.perf_counter() + busy
        while time.perf_counter() < until:
            pass
        if asleep:
            time.sleep(asleep)


@contextlib.contextmanager
def beside(rhythm: tuple[float, float] | None) -> Iterator[None]:
    """A neighbour process for the time of the block."""
    if rhythm is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "bench.omp_wait", "--neighbour", *map(str, rhythm)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(arguments: argparse.Namespace, setting: str, load: str) -> list[Steps]:
    """One process with one setting, beside one neighbour."""
    plain = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-m", "bench.omp_wait", "--child", "--model", str(arguments.model)]
    command += ["--threads", str(arguments.threads)]
    with beside(NEIGHBOURS[load]):
        result = subprocess.run(
            command, env={**plain, **SETTINGS[setting]}, check=True, stdout=subprocess.PIPE, text=True
        )
    return [Steps(**run) for run in json.loads(result.stdout)]


Key = tuple[str, str, int]


def measure_undisturbed(arguments: argparse.Namespace, setting: str, load: str) -> tuple[list[Steps], float]:
    """A run during which strangers used little, or the last of a few tries; and the cores they used."""
    competing = 0.0
    runs: list[Steps] = []
    for _ in range(TRIES):
        machine.wait_for_quiet(arguments.quiet, arguments.patience)
        meter = machine.Competition().begin()
        runs = measure(arguments, setting, load)
        # Neighbours of our own have been waited for, and so don't count as strangers.
        competing = meter.end()
        if competing <= arguments.quiet:
            break
    return runs, competing


def collect(arguments: argparse.Namespace) -> tuple[dict[Key, list[Steps]], list[float]]:
    """All rounds, or those before an interrupt: (load, setting, batch) → its runs, and the cores strangers used."""
    runs: dict[Key, list[Steps]] = {}
    competing: list[float] = []
    with contextlib.suppress(KeyboardInterrupt):
        for index, load, setting in _turns(arguments.rounds, arguments.loads.split(",")):
            found, strangers = measure_undisturbed(arguments, setting, load)
            competing.append(strangers)
            for steps in found:
                runs.setdefault((load, setting, steps.batch), []).append(steps)
            _progress(index, load, setting, found, strangers)
    return runs, competing


def _turns(rounds: int, loads: list[str]) -> Iterator[tuple[int, str, str]]:
    """Round, load and setting, in the order of measuring."""
    names = list(SETTINGS)
    for index in range(rounds):
        # Each round starts with another setting, so that drift doesn't favour one.
        shift = index % len(names)
        for load in loads:
            for setting in names[shift:] + names[:shift]:
                yield index, load, setting


def _progress(index: int, load: str, setting: str, runs: list[Steps], strangers: float) -> None:
    rates = ", ".join(f"B = {run.batch}: {run.rate():.1f} tok/s" for run in runs)
    print(f"  round {index + 1}, {load}, {setting}: {rates}; others {strangers:.2f}", file=sys.stderr, flush=True)


def summary(key: Key, runs: list[Steps]) -> dict[str, Any]:
    """One line of the table. The rate is the median over rounds; percentiles are over all steps of all rounds."""
    load, setting, batch = key
    steps = [second for run in runs for second in run.seconds]
    at: Callable[[float], float | None] = lambda percent: number(1e3 * percentile(steps, percent))  # noqa: E731
    return {
        "load": load,
        "setting": setting,
        "batch": batch,
        "tok_s": number(median(run.rate() for run in runs)),
        "p50_ms": at(50),
        "p90_ms": at(90),
        "p99_ms": at(99),
        "cpu_ms_per_step": number(1e3 * sum(run.cpu for run in runs) / len(steps)),
    }


def print_table(lines: list[dict[str, Any]]) -> None:
    names = list(lines[0])
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for line in lines:
        print("| " + " | ".join(str(line[name]) for name in names) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode steps under libgomp's wait policies.")
    parser.add_argument("--model", type=Path, default=default_model())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet", type=float, default=0.1, metavar="CORES", help="wait until others use less")
    parser.add_argument("--patience", type=float, default=120.0, metavar="SECONDS", help="for --quiet")
    parser.add_argument("--loads", default=",".join(NEIGHBOURS), help="neighbours, comma-separated")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--neighbour", type=float, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.neighbour:
        neighbour(*arguments.neighbour)
    if arguments.child:
        child(arguments.model, arguments.threads)
        return 0
    end_on_signals()
    with machine.sole_benchmark():
        runs, competing = collect(arguments)
    if not runs:
        return 130
    lines = [summary(key, runs[key]) for key in sorted(runs, key=_order)]
    print_table(lines)
    print(f"\nothers used {median(competing):.2f} cores (median of the runs), {max(competing):.2f} (most)\n")
    print(json.dumps({"bench": "omp_wait", "machine": machine.describe(arguments.model), "lines": lines}))
    return 0


def _order(key: Key) -> tuple[int, int, int]:
    load, setting, batch = key
    return list(NEIGHBOURS).index(load), batch, list(SETTINGS).index(setting)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
