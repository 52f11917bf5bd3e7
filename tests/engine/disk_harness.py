"""Short ways to drive a `DiskTier`, in this process and in others."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from forgelm.engine.disk import DiskTier, Finished, Loaded, Written
from forgelm.engine.disk_format import Bytes, Tokens

PATIENCE = 60.0
MIB = 1 << 20
HEAD = 200
"""More than the header of a few tokens takes."""


@contextmanager
def opened(directory: Path, identity: str = "model", limit: int = 1 << 30, **options: int) -> Iterator[DiskTier]:
    tier = DiskTier(directory, identity, limit, **{"keep_free": 0, **options})
    try:
        yield tier
    finally:
        tier.close(PATIENCE)


def ids(*numbers: int) -> Tokens:
    return np.array(numbers, np.int32)


def state(number: int, size: int = 1000) -> Bytes:
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def ends(tier: DiskTier, count: int) -> list[Finished]:
    """The next things that end, at least `count`."""
    found: list[Finished] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        tier.wait(deadline - time.monotonic())
        found += tier.poll()
        assert time.monotonic() < deadline, f"only {found} ended"
    return found


def settled(tier: DiskTier, kind: type[Written] | type[Loaded]) -> list[Finished]:
    """What ends up to the first end of that kind, which nothing may follow."""
    found: list[Finished] = []
    while not found or not isinstance(found[-1], kind):
        found += ends(tier, 1)
    assert sum(isinstance(end, kind) for end in found) == 1
    return found


def put(tier: DiskTier, number: int, size: int = 1000, *, partial: bool = False) -> str:
    """The name of a state that is on disk when this returns."""
    name = tier.write(ids(number), partial, state(number, size))
    assert name is not None
    assert settled(tier, Written)[-1] == Written(name, True)
    return name


def get(tier: DiskTier, name: str) -> Bytes | None:
    tier.read(name)
    end = settled(tier, Loaded)[-1]
    assert isinstance(end, Loaded)
    assert end.name == name
    return end.data


@contextmanager
def stalled(tier: DiskTier) -> Iterator[None]:
    """Nothing is written as long as the block lasts."""
    with tier._store._shelf._changing:
        yield


_ENGINE = """
import sys
from pathlib import Path
from tests.engine.disk_harness import opened, put

directory, (first, count, size, limit) = Path(sys.argv[1]), map(int, sys.argv[2:])
with opened(directory, limit=limit) as tier:
    print("open", flush=True)
    for number in range(first, first + count):
        put(tier, number, size)
"""


@contextmanager
def engine(directory: Path, first: int, count: int, size: int, limit: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the directory open and writes `count` states, numbered from `first`."""
    numbers = (str(number) for number in (first, count, size, limit))
    command = [sys.executable, "-c", _ENGINE, str(directory), *numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()
