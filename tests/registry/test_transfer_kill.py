"""A process that fetches a file is killed: whoever comes next goes on, and nobody ever sees half a model."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forgelm.registry.ledger import BLOCK
from tests.registry.fetching import Fetching, place
from tests.registry.hub import LocalHub

KILLS = 20
CONTENT = random.Random(5).randbytes(100_000_000)


@pytest.fixture(scope="module")
def fetching_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("content") / "fetching"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def fetching(local: LocalHub, tmp_path: Path, fetching_file: Path) -> Fetching:
    return place(local, tmp_path / "models", fetching_file)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.002)


def kill(process_id: int | None) -> None:
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def test_killed_at_twenty_random_points(fetching: Fetching) -> None:
    # Slow enough for the kernel's buffers to be nearly empty: what is in them was sent, and nobody got it.
    fetching.local.faults.rate = 60e6
    points = sorted(random.Random(20).sample(range(len(CONTENT)), KILLS))
    recorded = [0]
    for point in points:
        with fetching.child() as process:
            # By what will have been sent in all, were nothing sent twice.
            begun = fetching.sent
            until(lambda: recorded[-1] + fetching.sent - begun >= point)  # noqa: B023
            kill(process.pid)
            process.join()
            assert process.exitcode == -signal.SIGKILL
        assert fetching.visible() == []
        state = fetching.partial.load()
        here = state.bytes if state else 0
        assert here >= recorded[-1], "what was here stays"
        assert here >= recorded[-1] + fetching.sent - begun - BLOCK, "no more than a block is lost"
        if state is not None:
            with fetching.partial.data.open("rb") as data:
                for start, stop in state.done:
                    data.seek(start)
                    assert data.read(stop - start) == CONTENT[start:stop]
        recorded.append(here)
    fetching.local.faults.rate = None
    begun = fetching.sent
    fetching.run()
    assert fetching.is_right()
    assert fetching.sent - begun == len(CONTENT) - recorded[-1]
    assert fetching.sent <= len(CONTENT) + KILLS * BLOCK


def test_who_waits_goes_on_where_the_killed_one_was(fetching: Fetching) -> None:
    fetching.local.faults.rate = 80e6
    with fetching.child() as process:
        until(lambda: fetching.sent > 30_000_000)

        fetching.on_progress = lambda: kill(process.pid) if len(fetching.told) == 1 else None
        fetching.run()
    assert fetching.states[0] == "waiting"
    assert "downloading" in fetching.states
    assert fetching.is_right()
    assert fetching.sent <= len(CONTENT) + BLOCK


def test_killed_when_all_was_sent(fetching: Fetching) -> None:
    fetching.local.faults.rate = 150e6
    with fetching.child() as process:
        until(lambda: fetching.sent == len(CONTENT))
        kill(process.pid)
    begun = fetching.sent
    fetching.run()
    assert fetching.is_right()
    assert fetching.sent - begun <= BLOCK
