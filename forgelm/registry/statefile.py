"""A small JSON file that several processes change: read whole, replaced whole, under a lock.

It knows nothing of what is in it. One that can't be read is set aside, never overwritten.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from forgelm import log
from forgelm.registry.locks import locked

Kept = TypeVar("Kept")


class StateFile(Generic[Kept]):
    """One file of values of one type."""

    def __init__(self, path: Path, kind: type[Kept], empty: Kept) -> None:
        """`empty` is what a file that isn't there says."""
        self._path = path
        self._kind = kind
        self._empty = empty

    def read(self) -> Kept:
        """What it says now. A file that is broken says nothing."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return self._empty
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.get("registry").warning("a file can't be read", path=str(self._path), reason=str(error))
            return self._empty

    def change(self, how: Callable[[Kept], Kept]) -> Kept:
        """Replace what it says; other processes wait meanwhile. Raises `OSError`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._path.with_name(f".{self._path.name}.lock")):
            self._set_aside_if_broken()
            before = self.read()
            after = how(before)
            if after != before:
                write(self._path, msgspec.json.format(msgspec.json.encode(after)))
            return after

    def _set_aside_if_broken(self) -> None:
        try:
            msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._path.replace(self._path.with_name(f"{self._path.name}.broken-{time.time_ns()}"))


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path`: all of it or, if the power fails, what was there. Raises `OSError`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
