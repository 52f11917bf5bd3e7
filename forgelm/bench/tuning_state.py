"""What a search has measured so far, on disk: one JSON line each, so that one that was killed goes on where it stopped.

A line's key is a digest of all that the measurement depends on. A line that was cut off is passed over.
"""

import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from forgelm.bench.tuning_types import Pair, Quality, Sample
from forgelm.errors import MachineError


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a pair, a single measurement or a quality."""

    key: str
    pair: Pair | None = None
    sample: Sample | None = None
    quality: Quality | None = None


class State:
    """The file, held by one search at a time. A context manager."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """`fresh` forgets what was measured. Raises `MachineError` when it can't be written or another has it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise MachineError(f"the search's file {path} can't be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise MachineError(f"another `forgelm bench tune` is writing {path}") from None
        if fresh:
            self._file.truncate(0)
        self._records = self._read()

    def __enter__(self) -> "State":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: str) -> Record | None:
        """What was measured before under that key."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Write it down. On disk when this returns."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._records[record.key] = record

    def _read(self) -> dict[str, Record]:
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith(b"\n"):
            # The process was killed in the middle of a line; the next one must not become part of it.
            self._file.write(b"\n")
        found = {}
        for line in text.splitlines():
            try:
                record = msgspec.json.decode(line, type=Record)
            except msgspec.DecodeError:
                continue
            found[record.key] = record
        return found


def digest(*parts: Any) -> str:
    """A key of everything that `parts` say, as JSON."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:32]
