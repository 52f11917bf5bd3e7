"""What headers and hashes said is kept, in a file that may be lost at any time and that several processes use."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from forgelm.registry import index as indexes
from forgelm.registry.index import Index, Stamp
from forgelm.registry.judge import Judgement
from tests.program import ROOT

STAMP = Stamp("/models/a.gguf", 100, 5)
CHANGED = Stamp("/models/a.gguf", 100, 6)
WRITER = """
import sys
from pathlib import Path
from forgelm.registry.index import Index, Stamp
from tests.registry.test_index import judgement
index = Index(Path(sys.argv[1]))
name = sys.argv[2]
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    index.judged([(Stamp(f"/{name}/{number}", 1, 1), judgement(name))])
    index.used(f"/{name}/{number}", 7.0)
    assert f"/{name}/{number}" in index.facts()
"""


def judgement(name: str = "a", problem: str = "") -> Judgement:
    return Judgement(
        "chat", "llama", name, "Q4_0", 9, 4096, template=True, mtp=False, pooling=-1, problem=problem, note="a note"
    )


def journal(path: Path) -> str:
    with sqlite3.connect(path) as database:
        (mode,) = database.execute("PRAGMA journal_mode").fetchone()
    database.close()
    return str(mode)


def write_at_once(state: Path, names: str, count: int) -> None:
    """Have one process for each of `names` write to the index, all at the same time."""
    command = [sys.executable, "-c", WRITER, str(state)]
    processes = [
        subprocess.Popen([*command, name, str(count)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        for name in names
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
        assert b"can't be used" not in errors


def test_what_a_header_said_comes_back(tmp_path: Path) -> None:
    Index(tmp_path).judged([(STAMP, judgement("Ünï"))])
    facts = Index(tmp_path).facts()[STAMP.path]
    assert facts == (STAMP, judgement("Ünï"), "", "", 0.0)


def test_a_hash_and_a_use_are_kept_beside_it(tmp_path: Path) -> None:
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    index.hashed(STAMP, "ab")
    index.used(STAMP.path, 12.5)
    index.judged([(STAMP, judgement("again"))])
    facts = index.facts()[STAMP.path]
    assert (facts.judgement, facts.sha256, facts.used) == (judgement("again"), "ab", 12.5)


def test_of_a_file_that_changed_only_its_use_is_known(tmp_path: Path) -> None:
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    index.hashed(STAMP, "ab")
    index.used(STAMP.path, 12.5)
    index.hashed(CHANGED, "cd")
    facts = index.facts()[STAMP.path]
    assert (facts.stamp, facts.judgement, facts.sha256, facts.used) == (CHANGED, None, "cd", 12.5)
    index.judged([(STAMP, judgement())])
    assert index.facts()[STAMP.path].sha256 == ""


def test_the_first_hash_stays_until_the_file_changes(tmp_path: Path) -> None:
    index = Index(tmp_path)
    for sha256 in ("ab", "cd", "ef"):
        index.hashed(STAMP, sha256)
        facts = index.facts()[STAMP.path]
        assert (facts.sha256, facts.first_sha256) == (sha256, "ab")
    index.hashed(CHANGED, "gh")
    facts = index.facts()[CHANGED.path]
    assert (facts.sha256, facts.first_sha256) == ("gh", "gh")


@pytest.mark.parametrize("judged", [b"", b"\xc1", b"\x80", b"\x81\xa4kind\xa2\xff\xfe", "text", 7])
def test_a_broken_judgement_is_read_again_and_costs_no_other(tmp_path: Path, judged: bytes | str | int) -> None:
    index, other = Index(tmp_path), Stamp("/models/b.gguf", 1, 1)
    index.judged([(STAMP, judgement()), (other, judgement("b"))])
    index.hashed(STAMP, "ab")
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        database.execute("UPDATE files SET judged = ? WHERE path = ?", (judged, STAMP.path))
    database.close()
    facts = index.facts()
    assert (facts[STAMP.path].judgement, facts[STAMP.path].sha256) == (None, "ab")
    assert facts[other.path].judgement == judgement("b")
    index.judged([(STAMP, judgement("again"))])
    assert index.facts()[STAMP.path].judgement == judgement("again")


def test_another_version_judges_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    index.hashed(STAMP, "ab")
    monkeypatch.setattr(indexes, "__version__", "99")
    facts = index.facts()[STAMP.path]
    assert (facts.judgement, facts.sha256) == (None, "ab")


def test_what_was_deleted_is_forgotten(tmp_path: Path) -> None:
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    index.forget([STAMP.path, "/models/never-known.gguf"])
    assert index.facts() == {}


def test_a_file_that_is_deleted_under_its_feet_is_made_anew(tmp_path: Path) -> None:
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    for path in tmp_path.glob("index.sqlite*"):
        path.unlink()
    assert index.facts() == {}
    index.used(STAMP.path, 3.0)
    assert Index(tmp_path).facts()[STAMP.path].used == 3.0


@pytest.mark.parametrize("content", [b"", b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_broken_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.sqlite").write_bytes(content)
    index = Index(tmp_path)
    assert index.facts() == {}
    index.judged([(STAMP, judgement())])
    assert index.facts()[STAMP.path].judgement == judgement()
    aside = [path.read_bytes() for path in tmp_path.glob("index.sqlite.broken-*")]
    assert aside == ([content] if content else [])


def test_pages_broken_inside_are_found_too(tmp_path: Path) -> None:
    """The first page was sound, so that opening it said nothing."""
    index = Index(tmp_path)
    index.judged((Stamp(f"/models/{number}", 1, 1), judgement("x" * 200)) for number in range(300))
    path = tmp_path / "index.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x55" * (len(content) - 4096))
    assert index.facts() == {}
    index.used(STAMP.path, 1.0)
    assert list(index.facts()) == [STAMP.path]
    assert len(list(tmp_path.glob("index.sqlite.broken-*"))) >= 1


@pytest.mark.parametrize("version", [indexes.SCHEMA + 1, 77])
def test_another_layout_is_set_aside(tmp_path: Path, version: int) -> None:
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        database.execute("CREATE TABLE files (another TEXT)")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    assert index.facts()[STAMP.path].judgement == judgement()
    assert len(list(tmp_path.glob("index.sqlite.broken-*"))) == 1


def test_where_it_cannot_be_written_nothing_is_known(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("in the way")
    index = Index(state)
    index.judged([(STAMP, judgement())])
    index.used(STAMP.path, 1.0)
    assert index.facts() == {}


def test_readers_do_not_wait_for_writers(tmp_path: Path) -> None:
    Index(tmp_path).judged([(STAMP, judgement())])
    assert journal(tmp_path / "index.sqlite") == "wal"
    with sqlite3.connect(tmp_path / "index.sqlite") as writer:
        writer.execute("UPDATE files SET used = 99")
        assert Index(tmp_path).facts()[STAMP.path].used == 0.0
    writer.close()


def test_without_shared_memory_it_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that SQLite's write-ahead log can't be used on."""

    class NoSharedMemory(sqlite3.Connection):
        def execute(self, text: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
            if "WAL" in text:
                raise sqlite3.OperationalError("locking protocol")
            return super().execute(text, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: connect(*args, **named, factory=NoSharedMemory))
    index = Index(tmp_path)
    index.judged([(STAMP, judgement())])
    assert index.facts()[STAMP.path].judgement == judgement()
    monkeypatch.undo()
    assert journal(tmp_path / "index.sqlite") == "delete"


def test_processes_write_at_once(tmp_path: Path) -> None:
    write_at_once(tmp_path, "abcd", 20)
    facts = Index(tmp_path).facts()
    assert sorted(facts) == sorted(f"/{name}/{number}" for name in "abcd" for number in range(20))
    assert {fact.used for fact in facts.values()} == {7.0}
    assert not list(tmp_path.glob("index.sqlite.broken-*"))


def test_processes_find_it_broken_at_once(tmp_path: Path) -> None:
    """One sets it aside; what the others wrote into the new one isn't lost."""
    (tmp_path / "index.sqlite").write_bytes(b"no database" * 1000)
    write_at_once(tmp_path, "abcd", 3)
    assert len(Index(tmp_path).facts()) == 12
    assert len(list(tmp_path.glob("index.sqlite.broken-*"))) == 1
