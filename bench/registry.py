"""The registry's transfer against `curl`: the same file from the same local hub into the same folder.

    python -m bench.registry throughput               about three minutes

Ours takes 4 connections, hashes what it writes, and syncs the file; so curl's is synced too where that costs something,
on the disk. In memory (`/dev/shm`) neither disk nor sync is measured, but what both cost in CPU. The hub sends the file
by `sendfile` from the page cache; curl gets a signed address at once, while ours asks the hub for one.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import machine
from bench.rows import Row, evaluate, number, table
from bench.servers import end_on_signals
from forgelm import paths
from forgelm.registry.hub import Hub
from forgelm.registry.transfer import fetch

BYTES = 1_000_000_000
BLOCK = 10_000_000
BAR = 0.9
MEMORY = Path("/dev/shm")
REPO = "local/bench"


@contextmanager
def served(path: Path) -> Iterator[tuple[str, str]]:
    """A hub with the file at `path` in a process of its own: its address, and that of the file."""
    command = [sys.executable, "-m", "tests.registry.hub", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint, url = process.stdout.readline().split()
        try:
            yield endpoint, url
        finally:
            process.stdin.close()


def curl(url: str, folder: Path, *, sync: bool) -> float:
    """Seconds that curl takes."""
    target = folder / "curl"
    began = time.perf_counter()
    subprocess.run(["curl", "--silent", "--fail", "--output", str(target), url], check=True)
    if sync:
        with target.open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - began


def ours(endpoint: str, folder: Path) -> float:
    """Seconds that ours takes, from asking where the file is to the model in its place."""
    hub = Hub(endpoint=endpoint)
    repo = hub.repo(REPO)
    began = time.perf_counter()
    fetch(hub, repo, repo.files[0], folder, cancel=threading.Event(), progress=lambda _: None)
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace, parent: Path, *, sync: bool) -> tuple[list[float], list[float]]:
    """Bytes per second of ours and of curl, pair by pair, after one that isn't counted."""
    source = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else parent, prefix="hub-")) / "model.gguf"
    try:
        with source.open("wb") as file:
            for _ in range(arguments.bytes // BLOCK):
                file.write(secrets.token_bytes(BLOCK))
        size = source.stat().st_size
        figures: tuple[list[float], list[float]] = ([], [])
        with served(source) as (endpoint, url):
            for pair in range(arguments.pairs + 1):
                # The first of two finds the page cache in another state than the second: they take turns.
                for side in (0, 1) if pair % 2 else (1, 0):
                    machine.wait_for_quiet(arguments.quiet, arguments.patience)
                    with tempfile.TemporaryDirectory(dir=parent, prefix="registry-") as folder:
                        seconds = curl(url, Path(folder), sync=sync) if side else ours(endpoint, Path(folder))
                    if pair:
                        figures[side].append(size / seconds)
        return figures
    finally:
        source.unlink(missing_ok=True)
        source.parent.rmdir()


def throughput(arguments: argparse.Namespace) -> int:
    """Measure in memory and on the disk, and print both."""
    cache = paths.cache_dir() / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    places = {"disk, curl synced": (cache, True)}
    if MEMORY.is_dir():
        places = {"memory": (MEMORY, False), **places}
    results, figures = [], {}
    for name, (parent, sync) in places.items():
        mine, theirs = measure(arguments, parent, sync=sync)
        results.append(evaluate(Row(name, "bytes_per_s", bar=BAR, unit="MB/s", scale=1e-6), mine, theirs))
        figures[name] = [[number(value) for value in side] for side in (mine, theirs)]
    print(table(results))
    said = {
        "bench": "registry",
        "what": "throughput",
        "bytes": arguments.bytes,
        "commit": machine.commit(),
        "rows": [result.as_json() for result in results],
        "figures": figures,
    }
    print(json.dumps(said))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="The registry's transfer against curl.")
    parser.add_argument("what", choices=["throughput"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--quiet", type=float, default=0.1, metavar="CORES", help="wait until others use less (0.1)")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="for --quiet (60)")
    arguments = parser.parse_args()
    end_on_signals()
    with machine.sole_benchmark():
        return throughput(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
