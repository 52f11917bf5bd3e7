"""Models against the hashes that they should have, and against those that they had."""

import os
import threading
from pathlib import Path

import pytest

from forgelm.errors import Conflict
from forgelm.registry import library as libraries
from forgelm.registry.progress import Cancelled, Progress
from tests import models
from tests.registry.files import write_split, write_tiny
from tests.registry.shelf import HASH, Shelf, fetched, note, silent


def test_a_right_file_is_right(shelf: Shelf, starter_path: Path) -> None:
    shelf.put(starter_path.name, starter_path)
    told = list[Progress]()
    model = shelf.library().verify("starter", told.append, threading.Event())
    assert (model.problem, model.sha256) == ("", models.starter_profile().model.sha256)
    assert told[-1] == Progress(model.bytes, model.bytes, "verifying")
    assert [each.bytes for each in told] == sorted(each.bytes for each in told)


def test_a_wrong_file_is_told_and_stays(shelf: Shelf) -> None:
    (path,) = fetched(shelf, "o/r", "m-Q4_0.gguf")
    model = shelf.library().verify("o/r:Q4_0", silent, threading.Event())
    assert f"should be {HASH}" in model.problem
    assert path.is_file()
    again = shelf.library().find("o/r:Q4_0")
    assert again.problem == model.problem
    write_tiny(path)
    assert shelf.library().find("o/r:Q4_0").problem == ""


def test_one_wrong_part_of_several(shelf: Shelf) -> None:
    folder = shelf.models / "o" / "r"
    folder.mkdir(parents=True)
    for number, path in enumerate(write_split(folder, "m-Q8_0", 2)):
        right = libraries.hash_files([path], 0, silent, threading.Event())[0]
        note(path, "o/r", path.name, HASH if number else right)
    assert "part 2 of it is damaged" in shelf.library().verify("o/r:Q8_0", silent, threading.Event()).problem


def test_a_file_that_nobody_vouches_for_gets_a_hash(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    assert library.find("m").sha256 == ""
    model = library.verify("m", silent, threading.Event())
    assert model.problem == ""
    assert [model.sha256] == libraries.hash_files([path], 0, silent, threading.Event())
    assert library.find("m").sha256 == model.sha256


def rot(path: Path) -> None:
    """Change a byte of the weights, as a disk does it: nobody wrote, so that size and time stay."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_rots_is_told_each_time(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    was = library.verify("m", silent, threading.Event()).sha256
    rot(path)
    for _ in range(2):
        assert f"and was {was} once" in library.verify("m", silent, threading.Event()).problem
        assert f"and was {was} once" in library.find("m").problem
    rot(path)
    assert library.verify("m", silent, threading.Event()).problem == ""
    os.utime(path)
    assert library.verify("m", silent, threading.Event()).problem == ""


def test_a_verdict_needs_no_index(shelf: Shelf) -> None:
    """It was read back from the index: where that couldn't be written, a damaged file was right."""
    fetched(shelf, "o/r", "m-Q4_0.gguf")
    shelf.state.write_text("in the way")
    library = shelf.library()
    assert f"should be {HASH}" in library.verify("o/r:Q4_0", silent, threading.Event()).problem
    assert library.find("o/r:Q4_0").problem == ""


def test_of_a_file_that_changes_while_it_is_hashed_nothing_is_known(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    with pytest.raises(Conflict, match="changed while it was read"):
        library.verify("m", lambda _: os.utime(path, (1, 1)), threading.Event())
    assert library.find("m").sha256 == ""


def test_a_check_can_be_stopped(shelf: Shelf) -> None:
    write_tiny(shelf.models / "m.gguf")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        shelf.library().verify("m", silent, cancel)
