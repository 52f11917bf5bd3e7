"""What a download and a hash cost whoever reads an answer: time between tokens with and without them.

    python -m bench.registry_itl                     about five minutes

`forgelm serve` answers one stream at a time with the starter model. In one window of each pair nothing else happens; in
the other its registry fetches a file from a local hub at the pace of a gigabit line, hashing as it goes, and hashes
another file from the disk. The hub runs under SCHED_IDLE: it stands for a machine elsewhere, and its work isn't ours.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import gguf
import httpx
import numpy as np

from bench import machine
from bench.rows import Row, evaluate, table
from bench.servers import Server, ServerError, Settings, default_model, end_on_signals, forgelm, running
from bench.sse import AnswerError, Endpoint, complete
from bench.stats import percentile

BYTES = 2_000_000_000
RATE = 110_000_000
"""Bytes per second."""
TOKENS = 300
BAR = 1.25
LAYER = 4096
REPO = "local/bench"


def write_model(path: Path, size: int) -> None:
    """A GGUF that reads like a model, of about `size` random bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    for add, value in (
        (writer.add_context_length, 4096),
        (writer.add_embedding_length, LAYER),
        (writer.add_feed_forward_length, LAYER),
        (writer.add_head_count, 32),
        (writer.add_head_count_kv, 32),
        (writer.add_vocab_size, LAYER),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    rows = size // (4 * LAYER)
    weights = np.random.default_rng(0).integers(0, 2**32, (rows, LAYER), np.uint32).view(np.float32)
    writer.add_tensor("blk.0.ffn_up.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve_hub(path: Path, rate: int) -> None:
    """The hub's process: tells its address, and lasts until its input ends."""
    from tests.registry.hub.local import LocalHub

    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with tempfile.TemporaryDirectory() as folder, LocalHub(Path(folder)) as hub:
        hub.faults.rate = rate
        hub.add(REPO, {path.name: path})
        print(hub.endpoint, flush=True)
        sys.stdin.read()


@contextmanager
def hub(path: Path, rate: int) -> Iterator[str]:
    """A hub that has the file at `path`; its address."""
    command = [sys.executable, "-m", "bench.registry_itl", "--serve", str(path), "--rate", str(rate)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def gaps(endpoint: Endpoint, seed: int) -> list[float]:
    """Seconds between the pieces of one answer."""
    prompt = f"{seed}. Tell a long story of a ship that leaves the harbour."
    answer = asyncio.run(complete(endpoint, prompt, TOKENS))
    return answer.gaps()


class Busy:
    """The registry at work: a download, and a hash that begins again whenever it has ended."""

    def __init__(self, server: Server, hashed: str) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60.0, trust_env=False)
        self._hashed = hashed
        self._over = threading.Event()
        self._hashes = threading.Thread(target=self._hash)
        self._job = ""

    def begin(self) -> None:
        """Start both, and wait until bytes come."""
        answer = self._http.post("/registry/download", json={"repo": REPO, "accept_license": True})
        if answer.is_error:
            raise ServerError(answer.text)
        self._job = answer.json()["id"]
        self._hashes.start()
        while not self.state()["bytes"]:
            time.sleep(0.05)

    def state(self) -> dict[str, float]:
        """The download's."""
        found: dict[str, float] = self._http.get(
            f"/registry/downloads/{self._job}", headers={"accept": "application/json"}
        ).json()
        return found

    def end(self) -> float:
        """Stop both; the share of the file that came. Raises `ServerError` when it ended before."""
        state = self.state()
        if state["state"] != "downloading":
            raise ServerError(f"the download is {state['state']} before the answer ended: {state}")
        self._over.set()
        self._http.delete(f"/registry/downloads/{self._job}?purge=true")
        self._hashes.join()
        self._http.close()
        return state["bytes"] / state["total"]

    def _hash(self) -> None:
        with httpx.Client(base_url=self._http.base_url, timeout=120.0, trust_env=False) as http:
            while not self._over.is_set():
                http.post(f"/registry/models/{self._hashed}/verify", headers={"accept": "application/json"})


def run(arguments: argparse.Namespace) -> tuple[list[float], list[float], list[float]]:
    """p99 in milliseconds of each pair's windows, busy and idle, and the shares that were fetched."""
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        file = Path(folder) / "Bench-F32.gguf"
        write_model(file, arguments.bytes)
        models = Path(folder) / "models"
        models.mkdir()
        (models / "hashed.gguf").symlink_to(file)
        with hub(file, arguments.rate) as endpoint:
            environment = {"HF_ENDPOINT": endpoint, "FORGELM_MODELS": str(models), "XDG_STATE_HOME": folder}
            kind = forgelm(Settings(arguments.model.resolve(), context=8192, parallel=4))
            with running(replace(kind, environment=environment)) as server:
                return pairs(server, arguments.pairs)


def pairs(server: Server, count: int) -> tuple[list[float], list[float], list[float]]:
    """Interleaved windows; which comes first alternates."""
    gaps(server.endpoint, 0)
    busy, idle, shares = list[float](), list[float](), list[float]()
    for number in range(count):
        for at_work in (True, False) if number % 2 else (False, True):
            registry = Busy(server, "hashed") if at_work else None
            if registry:
                registry.begin()
            p99 = 1e3 * percentile(gaps(server.endpoint, number + 1), 99)
            if registry:
                shares.append(registry.end())
            (busy if at_work else idle).append(p99)
            print(f"{'busy' if at_work else 'idle'} p99 {p99:.1f} ms", file=sys.stderr, flush=True)
    return busy, idle, shares


def main() -> int:
    parser = argparse.ArgumentParser(description="Time between tokens while the registry fetches and hashes.")
    parser.add_argument("--model", type=Path, default=default_model())
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--rate", type=int, default=RATE, help="bytes per second that the hub sends")
    parser.add_argument("--directory", type=Path, help="where the files go; the system's temporary one by default")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_hub(arguments.serve, arguments.rate)
        return 0
    end_on_signals()
    try:
        with machine.sole_benchmark():
            busy, idle, shares = run(arguments)
    except (ServerError, AnswerError, OSError) as error:
        print(f"registry_itl: {error}", file=sys.stderr)
        return 1
    row = evaluate(Row("ITL p99, registry at work / idle", "itl_p99", bar=BAR, at_least=False, unit="ms"), busy, idle)
    print(table([row]))
    about = machine.describe(arguments.model)
    figures = {"busy_ms": busy, "idle_ms": idle, "shares": shares}
    print(json.dumps({"bench": "registry_itl", "machine": about, "row": row.as_json(), **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
