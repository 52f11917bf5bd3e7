"""What has been written of a file, in memory and in its state file."""

import threading

import msgspec

from forgelm.registry.partial import Partial, State
from forgelm.registry.ranges import Ranges

BLOCK = 8 << 20
"""Bytes that are fetched again at most after a sudden end: no more than these are here and not in the state file."""
RECORD = BLOCK // 2
"""Bytes after which the state file is written. The other half are those that connections read and don't yet count."""


class Ledger:
    """Shared by whoever writes and whoever follows."""

    def __init__(self, partial: Partial, state: State) -> None:
        self._partial = partial
        self._state = state
        self._ranges = Ranges(state.done)
        self._unrecorded = 0
        self._grown = threading.Condition()
        self._total = self._ranges.total
        self._stopped = False

    @property
    def total(self) -> int:
        """Bytes that are here."""
        return self._total

    @property
    def is_whole(self) -> bool:
        return self._total == self._state.size

    def wrote(self, start: int, stop: int, etag: str) -> None:
        """Bytes were written that weren't here; `etag` is that of whoever sent them. Raises `OSError`."""
        with self._grown:
            self._ranges.add(start, stop)
            self._total += stop - start
            self._unrecorded += stop - start
            if etag != self._state.etag:
                self._state = msgspec.structs.replace(self._state, etag=etag)
            if self._unrecorded >= RECORD or self.is_whole:
                self._record()
            self._grown.notify_all()

    def wait_for_prefix(self, beyond: int) -> int:
        """How far the file is here without a gap; returns when that is `beyond`, or it was stopped."""
        with self._grown:
            self._grown.wait_for(lambda: self._ranges.prefix > beyond or self._stopped)
            return self._ranges.prefix

    def wait_for_total(self, least: int, seconds: float) -> Ranges:
        """What is written as soon as that is `least` bytes or the whole file, or after some seconds."""
        with self._grown:
            self._grown.wait_for(lambda: self._total >= least or self.is_whole or self._stopped, seconds)
            return Ranges(self._ranges.spans)

    def synced(self, ranges: Ranges) -> None:
        """`ranges` are on the disk for certain. Raises `OSError`."""
        with self._grown:
            self._state = msgspec.structs.replace(self._state, synced=ranges.spans)
            self._record()

    def stop(self) -> None:
        """Bring the state file up to date; from now on it may be somebody else's. Raises `OSError`."""
        with self._grown:
            try:
                self._record()
            finally:
                self._stopped = True
                self._grown.notify_all()

    def _record(self) -> None:
        if self._stopped:
            return
        self._state = msgspec.structs.replace(self._state, done=self._ranges.spans)
        self._partial.save(self._state)
        self._unrecorded = 0
