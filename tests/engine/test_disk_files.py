"""The directory of states: its bounds, its order, its neighbours, and what a killed process leaves behind."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forgelm.engine.disk_files import NoSpace, Shelf
from forgelm.engine.disk_format import CHUNK, SUFFIX, Bytes

HEAD = b"head"
SIZE = len(HEAD) + 1000
PATIENCE = 60


def nothing() -> None:
    """Between two chunks."""


def data(size: int = 1000) -> Bytes:
    return np.zeros(size, np.uint8)


def name(number: int) -> str:
    return f"{number}{SUFFIX}"


class Opened:
    """A shelf and what it said was gone."""

    def __init__(self, directory: Path, limit: int = 10 * SIZE, keep_free: int = 0) -> None:
        self.gone: list[str] = []
        self.shelf = Shelf(directory, limit, keep_free, self.gone.append)
        self.shelf.open()

    def put(self, *numbers: int, size: int = 1000) -> None:
        for number in numbers:
            self.shelf.make_room(len(HEAD) + size)
            self.shelf.put(name(number), HEAD, data(size), nothing)


def names(*numbers: int) -> list[str]:
    return [name(number) for number in numbers]


def on_disk(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_directory_and_its_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "states"
    before = os.umask(0)
    try:
        Opened(directory).put(1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / name(1)).stat().st_mode) == 0o600


def test_a_file_has_its_head_and_all_of_its_data(tmp_path: Path) -> None:
    opened = Opened(tmp_path, limit=1 << 30)
    large = np.arange(2 * CHUNK + 5).astype(np.uint8)
    opened.shelf.put(name(1), HEAD, large, nothing)
    assert (tmp_path / name(1)).read_bytes() == HEAD + large.tobytes()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    opened = Opened(tmp_path, limit=3 * SIZE)
    opened.put(1, 2, 3)
    assert opened.shelf.use(name(1))
    opened.put(4)
    assert opened.gone == names(2)
    opened.put(5, 6)
    assert opened.gone == names(2, 3, 1)
    assert opened.shelf.names() == names(4, 5, 6)
    assert on_disk(tmp_path) == set(names(4, 5, 6))


def test_a_large_file_takes_the_place_of_several_and_the_bound_is_exact(tmp_path: Path) -> None:
    opened = Opened(tmp_path, limit=4 * SIZE)
    opened.put(1, 2, 3, 4)
    assert opened.gone == []
    opened.put(5, size=1001)
    assert opened.gone == names(1, 2)


def test_the_order_survives_a_restart(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.put(1, 2, 3)
    opened.shelf.use(name(1))
    again = Opened(tmp_path, limit=3 * SIZE)
    assert again.shelf.names() == names(2, 3, 1)
    again.put(4)
    assert again.gone == names(2)


def test_what_can_never_fit_costs_nobody_a_file(tmp_path: Path) -> None:
    opened = Opened(tmp_path, limit=2 * SIZE)
    opened.put(1, 2)
    with pytest.raises(NoSpace):
        opened.shelf.make_room(2 * SIZE + 1)
    assert on_disk(tmp_path) == set(names(1, 2))


def test_space_is_left_to_others(tmp_path: Path) -> None:
    """The disk isn't ours: files go before the last free bytes do, and if that isn't enough none goes."""
    Opened(tmp_path).put(1, 2, 3)
    free = shutil.disk_usage(tmp_path).free
    greedy = Opened(tmp_path, keep_free=2 * free)
    with pytest.raises(NoSpace, match="MiB are free"):
        greedy.shelf.make_room(SIZE)
    assert on_disk(tmp_path) == set(names(1, 2, 3))


def test_a_nearly_full_disk_makes_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(tmp_path, keep_free=10 * 4096)
    opened.put(1, 2, 3)
    # Two bytes are missing for a file more.
    status = list(os.statvfs(tmp_path))
    status[1], status[4] = 1, 10 * 4096 + SIZE - 2
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(status))
    opened.shelf.make_room(SIZE)
    assert opened.gone == names(1)


def test_another_ones_files_are_seen_counted_and_reported_when_they_go(tmp_path: Path) -> None:
    ours, theirs = Opened(tmp_path, limit=4 * SIZE), Opened(tmp_path, limit=4 * SIZE)
    ours.put(1, 2)
    theirs.put(3, 4)
    ours.put(5)
    assert ours.gone == names(1)
    theirs.put(6)
    assert theirs.gone == names(1, 2)
    ours.shelf.look()
    assert ours.gone == names(1, 2)
    assert set(ours.shelf.names()) == set(names(3, 4, 5, 6))


def test_what_another_one_has_used_since_stays(tmp_path: Path) -> None:
    ours = Opened(tmp_path, limit=3 * SIZE)
    ours.put(1, 2, 3)
    theirs = Opened(tmp_path, limit=3 * SIZE)
    theirs.shelf.use(name(1))
    ours.put(4)
    assert ours.gone == names(2)


def test_our_own_changes_cost_no_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(tmp_path, limit=2 * SIZE)
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("looked at the whole directory"))
    opened.put(1, 2, 3)
    opened.shelf.delete(name(2))
    opened.shelf.look()
    assert opened.shelf.names() == names(3)


def test_a_directory_emptied_by_hand_is_filled_again(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "states")
    opened.put(1, 2)
    shutil.rmtree(tmp_path / "states")
    opened.put(3)
    assert opened.gone == names(1, 2) or opened.gone == names(2, 1)
    assert opened.shelf.names() == names(3)
    assert not opened.shelf.use(name(1))


def test_others_things_in_the_directory_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"link{SUFFIX}").symlink_to(tmp_path / "notes.txt")
    (tmp_path / f"directory{SUFFIX}").mkdir()
    opened = Opened(tmp_path, limit=SIZE)
    opened.put(1, 2)
    assert opened.gone == names(1)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_stops_a_write_leaves_no_trace(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    opened = Opened(tmp_path, limit=1 << 30)
    calls = 0

    def between() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Enough

    with pytest.raises(Enough):
        opened.shelf.put(name(1), HEAD, data(3 * CHUNK), between)
    assert on_disk(tmp_path) == set()
    assert opened.shelf.names() == []


def test_a_dead_ones_unfinished_file_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead, living = tmp_path / f"dead{SUFFIX}.tmp", tmp_path / f"living{SUFFIX}.tmp"
    dead.write_bytes(b"half")
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Opened(tmp_path)
        assert on_disk(tmp_path) == {living.name}
    Opened(tmp_path)
    assert on_disk(tmp_path) == set()


WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from forgelm.engine import disk_files
from forgelm.engine.disk_files import Shelf

directory, point, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
calls = 0

def between():
    global calls
    calls += 1
    if point == "chunk" and calls == number:
        die()
    if point == "pause":
        print("writing", flush=True)
        sys.stdin.readline()

shelf = Shelf(directory, 1 << 30, 0, print)
shelf.open()
if point == "fsync":
    os.fsync = die
if point == "rename":
    Path.rename = die
shelf.put(sys.argv[4], b"head", np.full(3 * disk_files.CHUNK, 7, np.uint8), between)
if point == "end":
    die()
"""


def writer(directory: Path, point: str, number: int = 0) -> subprocess.Popen[str]:
    """Another process that writes one file, and kills itself or waits at `point`."""
    command = [sys.executable, "-c", WRITER, str(directory), point, str(number), name(1)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("point", "number", "there"),
    [("chunk", 1, False), ("chunk", 4, False), ("fsync", 0, False), ("rename", 0, False), ("end", 0, True)],
)
def test_a_killed_writer_leaves_the_whole_file_or_none(tmp_path: Path, point: str, number: int, there: bool) -> None:
    with writer(tmp_path, point, number) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert len(on_disk(tmp_path)) == 1
    opened = Opened(tmp_path)
    assert on_disk(tmp_path) == (set(names(1)) if there else set())
    assert opened.shelf.names() == (names(1) if there else [])
    if there:
        assert (tmp_path / name(1)).stat().st_size == len(HEAD) + 3 * CHUNK


def test_opening_leaves_a_living_process_its_unfinished_file(tmp_path: Path) -> None:
    with writer(tmp_path, "pause") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        opened = Opened(tmp_path)
        assert len(on_disk(tmp_path)) == 1
        process.communicate("\n" * 20, timeout=PATIENCE)
        assert process.returncode == 0
    opened.shelf.look()
    assert opened.shelf.names() == names(1)
