"""Decode speed of the engine process alone, and of `llama-batched-bench` doing the same work.

    python -m bench.engine_decode                   our side only; the comparison is `bench.compare --only decode`

Starts the real engine process on a socket pair, with the command and environment `forgelm serve` gives it, and speaks
its messages: no HTTP, no tokenizer, no template. B sequences with short random prompts decode together; the clock runs
over steps in which all B got a token and nobody was prefilled. The peer's `S_TG` clocks the same number of such steps.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import machine
from bench.load import Metrics
from bench.servers import REPOSITORY, Settings, default_model
from forgelm.commands.launching import engine_command
from forgelm.config import Profile
from forgelm.ipc.framing import FrameBuffer, frame
from forgelm.ipc.messages import Abort, Fatal, FromEngine, Generate, Ready, Sampling, Step, decode_from_engine
from forgelm.machine import read_machine
from forgelm.profiles import load_profile

TIMEOUT = 120.0
SLACK = 160
"""Tokens beyond the clocked steps: while the last prompts are computed, the first sequences already generate."""


class DecodeError(Exception):
    """The engine or its peer ended, or the steady steps did not come."""


@dataclass(frozen=True)
class Work:
    """What is decoded. Small batches are repeated, since their steps are few milliseconds each."""

    prompt: int = 32
    steps: int = 64
    batches: tuple[int, ...] = (1, 4, 8, 16, 1, 4, 1, 8, 1)

    @classmethod
    def quick(cls) -> "Work":
        return cls(steps=16, batches=(1, 4, 8, 16))

    @property
    def largest(self) -> int:
        return max(self.batches)


@dataclass(frozen=True)
class Clocked:
    """The steady part of one run: when it began, and when each of its steps arrived."""

    start: float
    arrivals: tuple[float, ...]

    def rate(self, batch: int) -> float:
        """Tokens per second of all `batch` sequences together."""
        return batch * len(self.arrivals) / (self.arrivals[-1] - self.start)


class EngineProcess:
    """A running engine and our end of its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = FrameBuffer()
        self._pending: list[FromEngine] = []
        self._ids = 0

    def receive(self) -> tuple[float, FromEngine]:
        """The next message and when it was read. Raises `DecodeError` on `Fatal` or the engine's end."""
        while not self._pending:
            data = self._socket.recv(1 << 20)
            if not data:
                raise DecodeError("the engine process ended")
            self._pending = [decode_from_engine(body) for body in self._buffer.feed(data)]
        message = self._pending.pop(0)
        if isinstance(message, Fatal):
            raise DecodeError(f"the engine gave up: {message.reason}")
        return time.perf_counter(), message

    def wait_ready(self) -> Ready:
        while True:
            _, message = self.receive()
            if isinstance(message, Ready):
                return message

    def decode(self, batch: int, work: Work, vocabulary: int) -> Clocked:
        """Clock `work.steps` steps of `batch` sequences."""
        ids = self._generate(batch, work, vocabulary)
        arrivals: list[float] = []
        while len(arrivals) <= work.steps:
            at, message = self.receive()
            if not isinstance(message, Step):
                continue
            if any(delta.finish for delta in message.deltas if delta.id in ids):
                raise DecodeError(f"a sequence ended after {len(arrivals)} of {work.steps} steady steps")
            got = {delta.id for delta in message.deltas if delta.tokens}
            # A step that isn't steady (a stray prefill) restarts the clock: only an unbroken run counts.
            arrivals = [*arrivals, at] if got == ids and message.stats.prefill_tokens == 0 else []
        self._end(ids)
        return Clocked(arrivals[0], tuple(arrivals[1:]))

    def _generate(self, batch: int, work: Work, vocabulary: int) -> set[int]:
        greedy = Sampling(temperature=0.0)
        ids = set(range(self._ids, self._ids + batch))
        self._ids += batch
        frames = b""
        for request in ids:
            prompt = random.Random(request).choices(range(100, vocabulary), k=work.prompt)
            packed = struct.pack(f"<{work.prompt}i", *prompt)
            frames += frame(Generate(request, packed, work.steps + SLACK, greedy))
        self._socket.sendall(frames)
        return ids

    def _end(self, ids: set[int]) -> None:
        """Abort all, and wait until they have ended, so that the next run begins on an idle engine."""
        self._socket.sendall(b"".join(frame(Abort(request)) for request in ids))
        left = set(ids)
        while left:
            _, message = self.receive()
            if isinstance(message, Step):
                left -= {delta.id for delta in message.deltas if delta.finish}


@contextlib.contextmanager
def engine(settings: Settings, parallel: int) -> Iterator[tuple[EngineProcess, Ready]]:
    """The engine process, ready, with `parallel` slots; ended and waited for on the way out."""
    command = engine_command(_profile(settings, parallel), settings.model, read_machine(), "warning")
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    process = subprocess.Popen(
        [sys.executable, "-m", command.module, str(theirs.fileno()), command.config],
        pass_fds=[theirs.fileno()],
        env={**os.environ, **command.environment},
        cwd=REPOSITORY,
    )
    theirs.close()
    try:
        connection = EngineProcess(ours)
        yield connection, connection.wait_ready()
    except TimeoutError:
        raise DecodeError(f"the engine was silent for {TIMEOUT:.0f} s") from None
    finally:
        # The engine exits when its socket ends.
        ours.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _profile(settings: Settings, parallel: int) -> Profile:
    overrides = {"context": settings.context, "parallel": parallel, "threads": settings.threads}
    return load_profile("starter").with_overrides({f"engine.{name}": value for name, value in overrides.items()})


def measure(settings: Settings, work: Work) -> Metrics:
    """Tokens per second of our engine, by batch size: the median of a batch size's repeats."""
    with engine(settings, work.largest) as (process, ready):
        rates = [(batch, process.decode(batch, work, ready.facts.vocabulary).rate(batch)) for batch in work.batches]
    return _by_batch(rates)


def measure_peer(settings: Settings, work: Work, program: Path) -> Metrics:
    """The same figures of `llama-batched-bench`, with one unified cache as ours."""
    options = {
        "--model": settings.model,
        "--ctx-size": settings.context,
        "--batch-size": 512,
        "--ubatch-size": 512,
        "--threads": settings.threads,
        "--threads-batch": settings.threads,
        "-npp": work.prompt,
        "-ntg": work.steps,
        "-npl": ",".join(map(str, work.batches)),
        "--output-format": "jsonl",
    }
    command = [str(program), *(str(part) for pair in options.items() for part in pair), "--kv-unified"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    if len(lines) != len(work.batches):
        raise DecodeError(f"llama-batched-bench printed {len(lines)} results for {len(work.batches)} batches")
    return _by_batch([(int(line["pl"]), float(line["speed_tg"])) for line in lines])


def _by_batch(rates: list[tuple[int, float]]) -> Metrics:
    return {
        f"decode_b{batch}_tok_s": median(rate for b, rate in rates if b == batch)
        for batch in sorted({batch for batch, _ in rates})
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode speed of the engine process alone.")
    parser.add_argument("--model", type=Path, default=default_model())
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with machine.sole_benchmark():
        metrics = measure(Settings(arguments.model.resolve(), arguments.threads), Work())
    for name, value in metrics.items():
        print(f"{name:20} {value:8.1f}")
    print(json.dumps({"bench": "engine_decode", **metrics}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
