"""The data of a file that is being fetched: written at any place, read from the front."""

import os
import threading
from pathlib import Path


class Stopped(Exception):
    """Whoever still writes is too late."""


class DataFile:
    """Many threads write, until they are stopped; some read, and the last of those closes it."""

    def __init__(self, path: Path, readers: int = 1) -> None:
        """Raises `OSError`."""
        self._readers = readers
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._stopped = False
        # Writers of one file exclude each other in the kernel anyway, where they spin: here they sleep, and it can't
        # happen that the file is closed and its number taken by another one meanwhile.
        self._writing = threading.Lock()

    def write(self, at: int, piece: bytes) -> None:
        """Put `piece` at byte `at`. Raises `OSError` and `Stopped`."""
        left = memoryview(piece)
        with self._writing:
            if self._stopped:
                raise Stopped
            while left:
                written = os.pwrite(self._handle, left, at)
                left, at = left[written:], at + written

    def read(self, at: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `at` on; how many bytes there were. Raises `OSError`."""
        return os.preadv(self._handle, [buffer], at)

    def sync(self) -> None:
        """Wait until all that was written is on the disk. Raises `OSError`."""
        os.fsync(self._handle)

    def stop(self) -> None:
        """Let nobody write any more, without waiting for the reader."""
        with self._writing:
            self._stopped = True

    def leave(self) -> None:
        """One of the readers needs it no more."""
        with self._writing:
            self._readers -= 1
            if not self._readers:
                self._stopped = True
                os.close(self._handle)
