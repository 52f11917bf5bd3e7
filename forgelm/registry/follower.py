"""Reading a file from the front while it grows: its sha256, and from time to time a sync. One thread, so one core."""

import hashlib
import threading
import time

from forgelm.registry.datafile import DataFile
from forgelm.registry.ledger import Ledger
from forgelm.registry.retries import Retryable

CHUNK = 1 << 20
TICK = 0.2
"""Seconds after which it looks whether it is still wanted."""
SYNC_SECONDS = 10.0
"""How much a power cut costs, about."""


class Follower:
    """What is here at its start is read too: a sha256 can't be continued."""

    def __init__(self, data: DataFile, ledger: Ledger, size: int, halt: threading.Event, *, hashed: bool) -> None:
        self._data = data
        self._ledger = ledger
        self._size = size
        self._halt = halt
        self._hashed = hashed
        self._digest = hashlib.sha256()
        self._buffer = memoryview(bytearray(CHUNK))
        self._last_sync = time.monotonic()
        self.position = 0
        """Bytes that were hashed."""

    def run(self) -> str | None:
        """The sha256 in hex when all is here, hashed and on the disk, "" where it isn't wanted; None if it was halted.

        Raises `OSError`, and `Retryable` when the file is shorter than what was written.
        """
        while self.position < self._size:
            here = self._ledger.wait_for(self.position, TICK)
            while self.position < here and not self._halt.is_set():
                self._advance(here)
                self._sync_sometimes()
            self._sync_sometimes()
            if self._halt.is_set():
                return None
        self._data.sync()
        return self._digest.hexdigest() if self._hashed else ""

    def _advance(self, here: int) -> None:
        if not self._hashed:
            self.position = here
            return
        chunk = self._buffer[: min(CHUNK, here - self.position)]
        count = self._data.read(self.position, chunk)
        if not count:
            raise Retryable("what was here of it has been cut off")
        self._digest.update(chunk[:count])
        self.position += count

    def _sync_sometimes(self) -> None:
        if time.monotonic() - self._last_sync < SYNC_SECONDS:
            return
        written = self._ledger.written()
        self._data.sync()
        self._ledger.synced(written)
        self._last_sync = time.monotonic()
