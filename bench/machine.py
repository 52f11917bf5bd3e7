"""The machine a measurement ran on, and what else it was doing meanwhile.

Reads /proc (Linux). Knows nothing of servers beyond their process ids.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forgelm import paths
from forgelm.machine import read_gpus

TICKS = os.sysconf("SC_CLK_TCK")
PACKAGES = ("llama-cpp-python", "numpy", "litestar", "uvicorn", "uvloop", "msgspec")


def describe(model: Path) -> dict[str, Any]:
    """Hardware, versions, commit and model, for the JSON line of a run. No names of hosts or paths."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit(),
        "model": model.name,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit checked out, with `+` where tracked files differ from it."""
    root = Path(__file__).parent

    def git(*arguments: str) -> str:
        result = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
        return result.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def sole_benchmark() -> Iterator[None]:
    """Hold this user's one turn to measure: two benchmarks at once would measure each other."""
    directory = paths.cache_dir() / "bench"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another benchmark is running; this one begins when it has ended", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def busy_seconds() -> float:
    """CPU seconds all cores together have spent working since boot, time stolen by the hypervisor included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


def cpu_seconds(pid: int) -> float:
    """CPU seconds (user and system, all threads) of one process so far; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def tree(pid: int) -> list[int]:
    """`pid` and its descendants that live now, parents first."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            # A thread that ends meanwhile takes its file along.
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def memory_mb(pid: int) -> dict[str, float]:
    """Resident set and proportional set of one process in MB (10^6 bytes). Weights are mapped and count in both."""
    values = {"rss": 0.0, "pss": 0.0, "anonymous": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name.lower() in values:
            values[name.lower()] = int(rest.split()[0]) * 1024 / 1e6
    return values


def vram_mb() -> float:
    """Memory in use on all NVIDIA cards in MB (10^6 bytes), whoever uses it; NaN without a card."""
    cards = read_gpus().cards
    return sum(card.total - card.free for card in cards) / 1e6 if cards else math.nan


@dataclass
class Competition:
    """The CPU that processes other than ours used between `begin` and `end`, as a number of cores.

    Ours are this process and the trees under `roots`. A process of ours that ends within the period must be waited for
    by this one: then its time is in our children's.
    """

    roots: Iterable[int] = ()
    _began: float = field(default=0.0, init=False)
    _busy: float = field(default=0.0, init=False)
    _ours: float = field(default=0.0, init=False)

    def begin(self) -> "Competition":
        self._began, self._busy, self._ours = time.perf_counter(), busy_seconds(), self._our_seconds()
        return self

    def end(self) -> float:
        """Cores' worth of competing work, on average.

        Most kernels sample the total at their tick, while processes' own times are exact: over a second or so, or
        with work in step with the tick, readings below a tenth mean nothing.
        """
        others = (busy_seconds() - self._busy) - (self._our_seconds() - self._ours)
        return max(0.0, others / (time.perf_counter() - self._began))

    def _our_seconds(self) -> float:
        times = os.times()
        pids = {pid for root in self.roots for pid in tree(root)}
        return times.user + times.system + times.children_user + times.children_system + sum(map(cpu_seconds, pids))


def wait_for_quiet(limit: float, patience: float) -> float:
    """Wait, at most `patience` seconds, until others use `limit` cores or less. Returns the last reading."""
    until = time.perf_counter() + patience
    while True:
        meter = Competition().begin()
        time.sleep(1.0)
        reading = meter.end()
        if reading <= limit or time.perf_counter() >= until:
            return reading
