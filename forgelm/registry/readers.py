"""The two threads that read a file while others write it: one hashes it from the front, one has the disk keep it."""

import hashlib
import threading

from forgelm.registry.datafile import DataFile
from forgelm.registry.hashing import update
from forgelm.registry.ledger import Ledger
from forgelm.registry.ranges import Ranges
from forgelm.registry.retries import Retryable

CHUNK = 1 << 20
SYNC_SECONDS = 10.0
SYNC_BYTES = 128 << 20
"""How much a power cut costs, and how much is left to sync in the end."""


class Hasher:
    """The sha256 of a file that grows. What is here at its start is read too: no sha256 is continued."""

    def __init__(self, data: DataFile, ledger: Ledger, size: int, halt: threading.Event) -> None:
        self._data = data
        self._ledger = ledger
        self._size = size
        self._halt = halt
        self._digest = hashlib.sha256()
        self._buffer = memoryview(bytearray(CHUNK))
        self.position = 0
        """Bytes that were hashed."""

    def run(self) -> str:
        """The sha256 in hex when all is here and hashed; of less when it was halted.

        Raises `OSError`, and `Retryable` when the file is shorter than what was written.
        """
        while self.position < self._size and not self._halt.is_set():
            here = self._ledger.wait_for_prefix(self.position)
            while self.position < here and not self._halt.is_set():
                chunk = self._buffer[: min(CHUNK, here - self.position)]
                count = self._data.read(self.position, chunk)
                if not count:
                    raise Retryable("what was here of it has been cut off")
                update(self._digest, chunk[:count])
                self.position += count
        return self._digest.hexdigest()


class Syncer:
    """Syncs what was written from time to time, so that the disk works meanwhile, and remembers what was."""

    def __init__(self, data: DataFile, ledger: Ledger, size: int, halt: threading.Event) -> None:
        self._data = data
        self._ledger = ledger
        self._size = size
        self._halt = halt

    def run(self) -> None:
        """Return when all is on the disk, or it was halted. Raises `OSError`."""
        synced = Ranges()
        while synced.total < self._size and not self._halt.is_set():
            written = self._ledger.wait_for_total(synced.total + SYNC_BYTES, SYNC_SECONDS)
            if written != synced:
                self._data.sync()
                self._ledger.synced(written)
                synced = written
