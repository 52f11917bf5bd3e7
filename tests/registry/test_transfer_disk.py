"""Disks that are full, folders that can't be written, things in the way: clear errors, and nothing is lost."""

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from forgelm.errors import ForgeError, MachineError, NoSpace
from forgelm.registry import locks, space
from forgelm.registry.datafile import DataFile
from forgelm.registry.ledger import Ledger
from forgelm.registry.partial import Partial, State
from forgelm.registry.readers import Hasher
from forgelm.registry.retries import Retryable
from tests.registry import namespaces
from tests.registry.fetching import FILE, REPO, Fetching, place
from tests.registry.hub import LocalHub
from tests.registry.powerless import read_only

CONTENT = random.Random(6).randbytes(2_000_000)


@pytest.fixture
def fetching(local: LocalHub, tmp_path: Path) -> Fetching:
    return place(local, tmp_path / "models", CONTENT)


def failure(fetching: Fetching) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        fetching.run()
    assert "\n" not in str(caught.value)
    assert "FORGELM_MODELS" in str(caught.value), "it says what to do"
    return caught.value


def test_a_disk_that_is_too_small(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda _: space.MARGIN + len(CONTENT) - 1)
    error = failure(fetching)
    assert isinstance(error, NoSpace)
    assert f"has 69 MB free, and {FILE} takes 2 MB more, with 67 MB to be left free: make room" in str(error)
    assert fetching.sent == 0
    monkeypatch.setattr(space, "free_bytes", lambda _: space.MARGIN + len(CONTENT))
    fetching.run()
    assert fetching.is_right()


def test_a_disk_that_somebody_fills(local: LocalHub, tmp_path: Path) -> None:
    """The system's own refusal, in the middle of the file; it goes on when there is room again."""
    content = random.Random(7).randbytes(30_000_000)
    fetching = place(local, tmp_path / "models", content)
    local.faults.rate = 20e6
    program = Path(__file__).parent / "full_disk.py"
    ended = namespaces.run(program, local.endpoint, str(fetching.models), apart="--mount", environment={})
    assert ended.returncode == 0, ended.stderr
    first, here, second = ended.stdout.splitlines()
    assert first.startswith(f"NoSpace: {fetching.target.parent} ")
    assert 5_000_000 < int(here) < len(content)
    assert second == f"whole: {len(content)}"
    # What was on its way when there was no room came twice: a read of each connection and the kernel's buffers.
    assert len(content) <= fetching.sent < len(content) + 8_000_000


def test_a_disk_that_fills_up_is_left_some_room(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgelm.registry.download.SPACE_SECONDS", 0.0)
    rooms = [1 << 40, space.MARGIN - 1]
    monkeypatch.setattr(space, "free_bytes", lambda _: rooms.pop(0) if len(rooms) > 1 else rooms[0])
    fetching.local.faults.rate = 2e6
    assert isinstance(failure(fetching), NoSpace)
    state = fetching.partial.load()
    assert state is not None
    assert state.bytes > 0


def test_a_folder_that_may_only_be_read(fetching: Fetching) -> None:
    with read_only(fetching.models):
        error = failure(fetching)
    assert isinstance(error, MachineError)
    assert "can't be written (Permission denied): let uid " in str(error)
    assert "FORGELM_MODELS" in str(error)
    fetching.run()
    with read_only(fetching.models):
        assert fetching.run() == fetching.target, "what is there needs no writing"


def test_a_folder_where_the_file_should_be(fetching: Fetching) -> None:
    fetching.target.mkdir(parents=True)
    with pytest.raises(MachineError, match=r"model\.gguf is a folder, in the way"):
        fetching.run()


def test_a_file_where_a_folder_should_be(fetching: Fetching) -> None:
    (fetching.models / "own").write_text("in the way")
    error = failure(fetching)
    assert isinstance(error, MachineError)
    assert f"in the way of {fetching.target}" in str(error)
    assert (fetching.models / "own").read_text() == "in the way"


def test_a_folder_in_place_of_a_hidden_file(fetching: Fetching) -> None:
    fetching.partial.data.mkdir(parents=True)
    assert f"{fetching.partial.data} is in the way" in str(failure(fetching))


def test_a_file_system_without_locks(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    assert "is on a file system without locks" in str(failure(fetching))


@pytest.mark.parametrize("function", ["pwrite", "fsync", "preadv"])
def test_a_disk_that_fails(fetching: Fetching, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(MachineError, match=r"model\.gguf can't be written: Input/output error"):
            fetching.run()
    assert fetching.visible() == []
    fetching.run()
    assert fetching.is_right()


def test_writes_that_the_system_cuts_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, bytes(data)[:7], at))
    data = DataFile(tmp_path / "data")
    data.write(5, b"abcdefghijklmnopqrstuvwxyz")
    data.leave()
    assert (tmp_path / "data").read_bytes() == bytes(5) + b"abcdefghijklmnopqrstuvwxyz"


def test_a_part_that_was_cut_off_is_told(tmp_path: Path) -> None:
    """Its end was written and isn't there any more."""
    partial = Partial(tmp_path / FILE)
    state = State(REPO, FILE, "c0ffee", 100, "ab" * 32, done=((0, 80),))
    data = DataFile(partial.data)
    data.write(0, bytes(50))
    hasher = Hasher(data, Ledger(partial, state), 100, threading.Event())
    with pytest.raises(Retryable, match="cut off"):
        hasher.run()
    assert hasher.position == 50
    data.leave()
