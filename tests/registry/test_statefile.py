"""Small files that several writers change: nothing is lost, and nothing broken is overwritten."""

import subprocess
import sys
from pathlib import Path

import pytest

from forgelm.registry.statefile import StateFile, write
from tests.program import ROOT

ADDER = """
import sys
from pathlib import Path
from forgelm.registry.statefile import StateFile
file = StateFile(Path(sys.argv[1]), dict[str, int], {})
for number in range(25):
    file.change(lambda kept: {**kept, f"{sys.argv[2]}{number}": number})
"""


def numbers(path: Path) -> StateFile[dict[str, int]]:
    return StateFile(path, dict[str, int], {})


def test_what_is_changed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "numbers.json"
    assert numbers(path).read() == {}
    assert numbers(path).change(lambda kept: {**kept, "one": 1}) == {"one": 1}
    assert numbers(path).read() == {"one": 1}


def test_processes_that_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    processes = [subprocess.Popen([sys.executable, "-c", ADDER, str(path), name], cwd=ROOT) for name in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert numbers(path).read() == {f"{name}{number}": number for name in "abc" for number in range(25)}
    assert sorted(each.name for each in tmp_path.iterdir()) == [".numbers.json.lock", "numbers.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": "no number"}'])
def test_a_broken_file_is_set_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(content)
    assert numbers(path).read() == {}
    assert path.read_text() == content
    numbers(path).change(lambda kept: {**kept, "one": 1})
    assert numbers(path).read() == {"one": 1}
    assert [each.read_text() for each in tmp_path.glob("numbers.json.broken-*")] == [content]


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    numbers(path).change(lambda _: {"one": 1})
    with pytest.raises(ZeroDivisionError):
        numbers(path).change(lambda _: {"one": 1 // 0})
    assert numbers(path).read() == {"one": 1}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "folder", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
