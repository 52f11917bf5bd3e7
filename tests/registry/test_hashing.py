"""Hashing whole files: right, one at a time, and no longer than somebody wants it."""

import hashlib
import threading
from pathlib import Path

import pytest

from forgelm.registry.hashing import hash_files
from forgelm.registry.progress import Cancelled, Progress

CONTENTS = [b"", b"a" * 3_000_001, bytes(range(256))]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / str(number) for number in range(len(CONTENTS))]
    for path, content in zip(found, CONTENTS, strict=True):
        path.write_bytes(content)
    return found


def test_hashes_and_how_far_they_are(paths: list[Path]) -> None:
    told: list[Progress] = []
    total = sum(map(len, CONTENTS))
    assert hash_files(paths, total, told.append, threading.Event()) == [
        hashlib.sha256(content).hexdigest() for content in CONTENTS
    ]
    assert told[0] == Progress(0, total, "waiting")
    assert told[-1] == Progress(total, total, "verifying")


def test_hashing_ends_when_nobody_wants_it(paths: list[Path]) -> None:
    cancel = threading.Event()

    def stop(progress: Progress) -> None:
        if progress.bytes:
            cancel.set()

    with pytest.raises(Cancelled):
        hash_files(paths, 1, stop, cancel)


def test_who_waits_for_a_turn_may_leave(paths: list[Path]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(progress: Progress) -> None:
        if progress.bytes:
            begun.set()
            go_on.wait()

    first = threading.Thread(target=hash_files, args=(paths, 1, hold, threading.Event()))
    first.start()
    begun.wait()
    cancel, told = threading.Event(), list[Progress]()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(Cancelled):
        hash_files(paths, 1, told.append, cancel)
    assert [each.state for each in told] == ["waiting"]
    go_on.set()
    first.join()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hash_files([tmp_path / "absent"], 1, lambda _: None, threading.Event())
