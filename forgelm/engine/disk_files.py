"""A directory of saved states, bounded by bytes: what lies in it, what was used last, what goes to make room.

Several engines may share it. Each finds the others' files when it needs to, counts them, and deletes them by age like
its own. A file appears in one rename, so there is never a half-written one under its name. What is in a file is not
looked at here.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Lock

from forgelm.engine.disk_format import CHUNK, SUFFIX, Bytes

_UNFINISHED = f"{SUFFIX}.tmp"


class NoSpace(Exception):
    """The file can't be made to fit; says what is short. Nothing was deleted for it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    size: int
    """Bytes."""
    used: int
    """When it was written or last read, in ns since 1970: its mtime, so that it is known after a restart."""


class Shelf:
    """The directory's files, oldest use first. Safe to use from several threads."""

    def __init__(self, directory: Path, limit: int, keep_free: int, gone: Callable[[str], None]) -> None:
        """At most `limit` bytes of files, and `keep_free` bytes of the file system left to others.

        `gone` is told every name that was deleted to make room, here or by another process.
        """
        self._directory = directory
        self._limit = limit
        self._keep_free = keep_free
        self._gone = gone
        self._changing = Lock()
        """Held while files appear or vanish. May be held for long: what answers at once doesn't take it."""
        self._lock = Lock()
        """Held while `_entries` is looked at, never during a file call."""
        self._entries: dict[str, Entry] = {}
        self._seen = 0
        """The directory's mtime when it held what we know. Where its clock is coarse, another's change in the same few
        milliseconds is seen only with the next one: the bound is exceeded for so long."""

    def open(self) -> None:
        """Make the directory, remove what killed processes left, see what is there. Raises `OSError`."""
        self._make_directory()
        for path in self._directory.glob(f"*{_UNFINISHED}"):
            _remove_unless_locked(path)
        self.look()

    def path(self, name: str) -> Path:
        """Where `name` lies, or would."""
        return self._directory / name

    def names(self) -> list[str]:
        """Every file, oldest use first."""
        with self._lock:
            return list(self._entries)

    def entry(self, name: str) -> Entry | None:
        """What is known of `name`."""
        with self._lock:
            return self._entries.get(name)

    def forget(self, name: str) -> None:
        """Count `name` as gone."""
        with self._lock:
            self._entries.pop(name, None)

    def look(self) -> None:
        """See what other processes changed, if anything. Raises `OSError`."""
        with self._changing:
            changed = self._mtime()
            if changed == self._seen:
                return
            found = sorted(_scan(self._directory), key=lambda item: item[1].used)
            with self._lock:
                lost = self._entries.keys() - dict(found).keys()
                self._entries = dict(found)
            self._seen = changed
        for name in lost:
            self._gone(name)

    def use(self, name: str) -> bool:
        """Make `name` the last to go; False if it isn't there any more. Raises `OSError`."""
        now = time.time_ns()
        try:
            os.utime(self.path(name), ns=(now, now))
        except FileNotFoundError:
            return False
        with self._lock:
            entry = self._entries.pop(name, None)
            if entry is not None:
                self._entries[name] = Entry(entry.size, now)
        return entry is not None

    def delete(self, name: str) -> None:
        """Delete `name` if it is there. Raises `OSError`."""
        with self._change():
            self.path(name).unlink(missing_ok=True)
            self.forget(name)

    def make_room(self, size: int) -> None:
        """Delete what was used longest ago until `size` more bytes fit. Raises `NoSpace` and `OSError`."""
        # Somebody may have emptied the cache by hand.
        self._make_directory()
        self.look()
        short = self._short(size)
        while short > 0 and (oldest := self._oldest()):
            name, entry = oldest
            if not self._used_elsewhere(name, entry):
                self.delete(name)
                self._gone(name)
                short -= entry.size

    def put(self, name: str, head: bytes, data: Bytes, between: Callable[[], None]) -> None:
        """Write a file, which is on the disk when this returns.

        Raises `OSError`, and what `between` raises, which is called before each chunk.
        """
        with self._change():
            descriptor, unfinished = tempfile.mkstemp(_UNFINISHED, dir=self._directory)
        with FileIO(descriptor, "w") as file:
            try:
                # Tells a file that is being written from what a killed process left.
                fcntl.flock(file, fcntl.LOCK_EX)
                for piece in _pieces(head, data):
                    between()
                    _write_whole(file, piece)
                now = time.time_ns()
                os.utime(descriptor, ns=(now, now))
                os.fsync(descriptor)
                with self._change():
                    Path(unfinished).rename(self.path(name))
                    with self._lock:
                        self._entries[name] = Entry(len(head) + len(data), now)
            except BaseException:
                with self._change():
                    Path(unfinished).unlink(missing_ok=True)
                raise

    def _short(self, size: int) -> int:
        """Bytes that must go before `size` more fit."""
        status = os.statvfs(self._directory)
        free = status.f_bavail * status.f_frsize
        with self._lock:
            held = sum(entry.size for entry in self._entries.values())
        short = max(held + size - self._limit, size + self._keep_free - free)
        if short > held:
            raise NoSpace(f"{free >> 20} MiB are free there, of which {self._keep_free >> 20} MiB are left to others")
        return short

    def _oldest(self) -> tuple[str, Entry] | None:
        with self._lock:
            return next(iter(self._entries.items()), None)

    def _used_elsewhere(self, name: str, entry: Entry) -> bool:
        """Whether another process has used `name` since; if so it takes its new place."""
        try:
            used = self.path(name).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if used <= entry.used:
            return False
        with self._lock:
            self._entries.pop(name, None)
            self._entries[name] = Entry(entry.size, used)
        return True

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Around what changes the directory, so that a change by anybody else can be told from ours."""
        with self._changing:
            known = self._mtime() == self._seen
            yield
            if known:
                self._seen = self._mtime()

    def _mtime(self) -> int:
        return self._directory.stat().st_mtime_ns

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _scan(directory: Path) -> Iterator[tuple[str, Entry]]:
    with os.scandir(directory) as found:
        for file in found:
            # It may be deleted by another process between the two calls.
            with suppress(FileNotFoundError):
                if file.name.endswith(SUFFIX) and file.is_file(follow_symlinks=False):
                    info = file.stat(follow_symlinks=False)
                    yield file.name, Entry(info.st_size, info.st_mtime_ns)


def _remove_unless_locked(path: Path) -> None:
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        # Somebody is at it.
        return


def _pieces(head: bytes, data: Bytes) -> Iterator[memoryview]:
    yield memoryview(head)
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK].data


def _write_whole(file: FileIO, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]
