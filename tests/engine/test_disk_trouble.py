"""What can go wrong with a disk, and with those who share it: a state is lost, an engine never is."""

import logging
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import LogCapture

from forgelm.engine.disk import Written
from forgelm.engine.disk_format import SUFFIX
from tests.engine.disk_harness import HEAD, MIB, PATIENCE, ends, engine, get, ids, opened, put, stalled, state


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """What is logged, at any level."""
    before = structlog.get_config()
    capture = LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield capture.entries
    structlog.configure(**before)


def flip(path: Path, offset: int) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset] ^= 1
    # In place: the directory's mtime stays, as when a disk loses a bit.
    with path.open("r+b") as file:
        file.write(whole)


@pytest.mark.parametrize("where", [0, 9, 14, 20, 40, -1000, -1])
def test_a_damaged_state_is_absent_deleted_and_logged(tmp_path: Path, where: int, logged: list[Any]) -> None:
    with opened(tmp_path) as tier:
        name, sound = put(tier, 1), put(tier, 2)
        flip(tmp_path / name, where)
        assert get(tier, name) is None
        assert not (tmp_path / name).exists()
        assert get(tier, name) is None
        assert get(tier, sound) is not None
        assert [entry.name for entry in tier.index()] == [sound]
        assert put(tier, 1) == name
        np.testing.assert_array_equal(get(tier, name), state(1))
    assert [(entry["log_level"], entry["file"]) for entry in logged] == [("info", name)]


@pytest.mark.parametrize("size", [0, 10, 50, 1000])
def test_a_truncated_state_is_deleted_by_the_index(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as tier:
        name, sound = put(tier, 1), put(tier, 2)
    os.truncate(tmp_path / name, size)
    with opened(tmp_path) as tier:
        assert [entry.name for entry in tier.index()] == [sound]
        assert not (tmp_path / name).exists()


def test_what_vanished_is_absent(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        name = put(tier, 1)
        (tmp_path / name).unlink()
        assert get(tier, name) is None
        assert get(tier, f"never{SUFFIX}") is None
        assert put(tier, 1) == name
        assert get(tier, name) is not None


def test_a_file_that_cant_be_opened_is_absent_and_left(tmp_path: Path, logged: list[Any]) -> None:
    """It may be a moment's trouble, such as too many open files. A link is never followed."""
    with opened(tmp_path) as tier:
        name = put(tier, 1)
        (tmp_path / name).rename(tmp_path / "elsewhere")
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
        assert get(tier, name) is None
        assert (tmp_path / name).is_symlink()
    assert [entry["event"] for entry in logged] == ["state not read"]


def test_a_full_disk_is_logged_once_and_keeps_what_is_there(tmp_path: Path, logged: list[Any]) -> None:
    with opened(tmp_path) as tier:
        name = put(tier, 1)
    free = shutil.disk_usage(tmp_path).free
    with opened(tmp_path, keep_free=2 * free) as tier:
        for number in (2, 3, 4):
            refused = tier.write(ids(number), False, state(number))
            assert refused is not None
            assert ends(tier, 1) == [Written(refused, False)]
        assert get(tier, name) is not None
    assert [(entry["log_level"], entry["event"]) for entry in logged] == [("warning", "no room for saved states")]


def test_an_error_of_the_disk_ends_writing_not_reading(tmp_path: Path, logged: list[Any]) -> None:
    """A real one: the system refuses to let the file grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as tier:
        name = put(tier, 1)
        with stalled(tier):
            failing = [tier.write(ids(number), False, state(number, 2 * MIB)) for number in (2, 3)]
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
        try:
            found = ends(tier, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert found == [Written(name, False) for name in failing if name]
        assert tier.write(ids(4), False, state(4)) is None
        assert get(tier, name) is not None
        assert {path.name for path in tmp_path.iterdir()} == {name}
    assert [(entry["log_level"], entry["event"]) for entry in logged] == [
        ("warning", "no more states are saved on disk")
    ]
    assert "too large" in logged[0]["reason"]


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nobody may write there; for root that takes another user's eyes."""
    directory.chmod(0o500)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o700)


def test_a_read_only_directory_ends_writing_once_and_serving_goes_on(tmp_path: Path, logged: list[Any]) -> None:
    with opened(tmp_path) as tier:
        name = put(tier, 1)
        with read_only(tmp_path):
            refused = tier.write(ids(2), False, state(2))
            assert refused is not None
            assert ends(tier, 1) == [Written(refused, False)]
            assert tier.write(ids(3), False, state(3)) is None
        assert get(tier, name) is not None
    assert [entry["log_level"] for entry in logged] == ["warning"]


def test_a_directory_that_cant_be_made_is_an_empty_one(tmp_path: Path, logged: list[Any]) -> None:
    (tmp_path / "file").write_text("in the way")
    with opened(tmp_path / "file" / "states") as tier:
        assert tier.index() == []
        assert tier.write(ids(1), False, state(1)) is None
        assert get(tier, f"any{SUFFIX}") is None
        tier.delete(f"any{SUFFIX}")
    assert [entry["log_level"] for entry in logged].count("warning") == 1


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1, 0.2, 0.4])
def test_a_writer_killed_at_any_moment_leaves_nothing_wrong(tmp_path: Path, delay: float) -> None:
    with engine(tmp_path, 0, 10_000, 3 * MIB, 1 << 30) as process:
        time.sleep(delay)
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    with opened(tmp_path) as tier:
        entries = tier.index()
        assert {path.name for path in tmp_path.iterdir()} == {entry.name for entry in entries}
        for entry in entries:
            np.testing.assert_array_equal(get(tier, entry.name), state(int(entry.tokens[0]), 3 * MIB))


def test_two_engines_share_a_directory_and_its_bound(tmp_path: Path) -> None:
    """Their writes may cross: then there is one file too many, until the next is written."""
    size, limit = 200_000, 1_500_000
    with engine(tmp_path, 0, 60, size, limit) as one, engine(tmp_path, 1000, 60, size, limit) as two:
        assert [one.wait(PATIENCE), two.wait(PATIENCE)] == [0, 0]
    assert _bytes(tmp_path) <= limit + size + HEAD
    with opened(tmp_path, limit=limit) as tier:
        entries = tier.index()
        assert len(entries) >= limit // (size + HEAD) - 1
        for entry in entries:
            np.testing.assert_array_equal(get(tier, entry.name), state(int(entry.tokens[0]), size))
        put(tier, 5000, size)
        assert _bytes(tmp_path) <= limit


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
