"""What reading the models' headers and hashing them gave, kept in SQLite by path, size and time of change.

Nothing in it is needed: a file that is lost, broken, or of an older ForgeLM is set aside, and what it said is read from
the models again; only when a model was last used can't be. Several processes use it at once, with a transaction of
milliseconds each. Where it can't be written everything is read each time.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from forgelm import __version__, log
from forgelm.registry.judge import Judgement
from forgelm.registry.locks import locked

SCHEMA = 2
BUSY_SECONDS = 10.0
"""How long one process waits for another's transaction."""
_TABLE = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL DEFAULT -1,
    mtime_ns INTEGER NOT NULL DEFAULT 0,
    judged BLOB,
    judge TEXT NOT NULL DEFAULT '',
    sha256 TEXT NOT NULL DEFAULT '',
    first_sha256 TEXT NOT NULL DEFAULT '',
    used REAL NOT NULL DEFAULT 0
) WITHOUT ROWID
"""
_STAMP = """
INSERT INTO files (path, size, mtime_ns) VALUES (?, ?, ?)
ON CONFLICT (path) DO UPDATE SET
    judged = CASE WHEN size = excluded.size AND mtime_ns = excluded.mtime_ns THEN judged END,
    sha256 = CASE WHEN size = excluded.size AND mtime_ns = excluded.mtime_ns THEN sha256 ELSE '' END,
    first_sha256 = CASE WHEN size = excluded.size AND mtime_ns = excluded.mtime_ns THEN first_sha256 ELSE '' END,
    size = excluded.size,
    mtime_ns = excluded.mtime_ns
"""
_HASH = """
UPDATE files SET sha256 = ?, first_sha256 = CASE first_sha256 WHEN '' THEN ? ELSE first_sha256 END WHERE path = ?
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Judgement).decode
Result = TypeVar("Result")


class Stamp(NamedTuple):
    """A file as it was when it was looked at."""

    path: str
    size: int
    mtime_ns: int


class Facts(NamedTuple):
    """What is known of one file."""

    stamp: Stamp
    judgement: Judgement | None
    """None when it has to be read again."""
    sha256: str
    """Of its bytes, as hashed here last; "" when they weren't."""
    first_sha256: str
    """As hashed here first since it was changed."""
    used: float


class Index:
    """The index in one state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / "index.sqlite"
        self._lock = state / ".index.lock"
        self._log = log.get("registry")

    def facts(self) -> dict[str, Facts]:
        """Path → what is known of the file there, whether or not it is still the same."""

        def read(database: sqlite3.Connection) -> dict[str, Facts]:
            rows = database.execute("SELECT path, size, mtime_ns, judged, judge, sha256, first_sha256, used FROM files")
            return {row[0]: Facts(Stamp(*row[:3]), _judgement(*row[3:5]), *row[5:]) for row in rows}

        return self._do(read, {})

    def judged(self, judgements: Iterable[tuple[Stamp, Judgement]]) -> None:
        """Keep what headers say."""
        rows = [(stamp, _encode(judgement)) for stamp, judgement in judgements]

        def write(database: sqlite3.Connection) -> None:
            database.executemany(_STAMP, [stamp for stamp, _ in rows])
            said = [(encoded, __version__, stamp.path) for stamp, encoded in rows]
            database.executemany("UPDATE files SET judged = ?, judge = ? WHERE path = ?", said)

        if rows:
            self._do(write, None)

    def hashed(self, stamp: Stamp, sha256: str) -> None:
        """Keep a file's sha256, and the first one too: of a file that nobody touched they are the same."""

        def write(database: sqlite3.Connection) -> None:
            database.execute(_STAMP, stamp)
            database.execute(_HASH, (sha256, sha256, stamp.path))

        self._do(write, None)

    def used(self, path: str, when: float) -> None:
        """Keep when a model was last used."""
        text = "INSERT INTO files (path, used) VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET used = excluded.used"
        self._do(lambda database: database.execute(text, (path, when)), None)

    def forget(self, paths: Iterable[str]) -> None:
        """Drop what is known of files that were deleted."""
        rows = [(path,) for path in paths]
        self._do(lambda database: database.executemany("DELETE FROM files WHERE path = ?", rows), None)

    # --- the file ---

    def _do(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """`work` in one transaction, on a new database if this one is broken; `otherwise` where there can be none."""
        try:
            for _ in range(2):
                broken = self._identity()
                try:
                    with self._open() as database:
                        return work(database)
                except sqlite3.OperationalError:
                    # Busy for too long, a full disk, a folder that can't be written: the database may be sound.
                    raise
                except sqlite3.DatabaseError as error:
                    self._set_aside(broken, str(error))
        except (OSError, sqlite3.Error) as error:
            self._log.warning("the index can't be used", path=str(self._path), reason=str(error))
        return otherwise

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # A connection for each transaction: one that is kept would go on writing to a file that was deleted.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as database:
            if _version(database) != SCHEMA:
                with locked(self._lock):
                    _prepare(database)
            with database:
                yield database

    def _identity(self) -> int:
        """Which file is at the path; 0 when there is none."""
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0

    def _set_aside(self, broken: int, reason: str) -> None:
        """Move a broken database away, unless another process has done so. Raises `OSError`."""
        with locked(self._lock):
            if self._identity() != broken:
                return
            self._log.warning("the index is broken and will be rebuilt", path=str(self._path), reason=reason)
            aside = f"{self._path.name}.broken-{time.time_ns()}"
            for ending in ("", "-wal", "-shm"):
                old = self._path.with_name(self._path.name + ending)
                if old.exists():
                    old.replace(old.with_name(aside + ending))


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _prepare(database: sqlite3.Connection) -> None:
    """Make the table in a database that is new. Raises `sqlite3.DatabaseError` for one of another layout."""
    version = _version(database)
    if version == SCHEMA:
        return
    if version:
        raise sqlite3.DatabaseError(f"its layout is version {version}, and this is {SCHEMA}")
    _use_wal(database)
    with database:
        database.execute(_TABLE)
        database.execute(f"PRAGMA user_version = {SCHEMA}")


def _use_wal(database: sqlite3.Connection) -> None:
    """Readers then don't wait for writers. Not every file system has the shared memory that it takes."""
    try:
        database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.execute("PRAGMA journal_mode = DELETE").fetchone()


def _judgement(judged: bytes | None, judge: str) -> Judgement | None:
    """None where the header has to be read again: another version may judge otherwise, and bytes may be broken."""
    if judged is None or judge != __version__:
        return None
    try:
        return _decode(judged)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return None
