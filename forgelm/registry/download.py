"""The bytes of one file, by several connections at once, from what is here of it to all of it.

The front of what is missing goes first, in requests that get smaller towards the end; behind them one thread hashes and
one syncs. The caller's thread only watches: it tells the progress, and ends everything within a moment.
"""

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Generator

from forgelm.errors import ForgeError, InternalError
from forgelm.registry import space
from forgelm.registry.connections import Body
from forgelm.registry.datafile import DataFile, Stopped
from forgelm.registry.ledger import BLOCK, RECORD, Ledger
from forgelm.registry.link import Changed, Link, NoRanges
from forgelm.registry.partial import Partial, State
from forgelm.registry.ranges import Queue, Ranges, Span
from forgelm.registry.readers import Hasher, Syncer
from forgelm.registry.retries import Limits, Patience, Retryable

LARGEST_READ = 1 << 20
PROGRESS = 64 << 10
"""Bytes that a request must have brought to count as one that worked: with fewer it would go on for days."""
TICK = 0.1
"""Seconds between two looks at how far it is."""
SPACE_SECONDS = 1.0
FIRST_CONNECTIONS = 2
FULL_RATE = 300_000_000
"""Bytes per second at which more connections would only cost more CPU."""
NICER = 5
"""How much later than the hasher, which is the slowest of all, the connections' threads get a core."""
LAST_BREATH = 0.5
"""Seconds that threads get to end in; those that wait for a server end later, and can't write any more."""

Watch = Callable[[int, int], None]
"""Told how many bytes are here and how many are hashed; ends the download by raising."""


class StartOver(Exception):
    """What is here is worth nothing; `whole` if the server sends whole files only."""

    def __init__(self, failure: Retryable, *, whole: bool = False) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.whole = whole


class Download:
    """One attempt, that ends with the whole file or an exception; what came stays for the next."""

    def __init__(self, link: Link, partial: Partial, state: State, limits: Limits, origin: str) -> None:
        """`origin` is whom messages name. Raises `OSError`."""
        self._link = link
        self._folder = partial.target.parent
        self._limits = limits
        self._origin = origin
        self._data = DataFile(partial.data, readers=2)
        self._ledger = Ledger(partial, state)
        self._halt = threading.Event()
        self._hasher = Hasher(self._data, self._ledger, state.size if state.sha256 else 0, self._halt)
        self._syncer = Syncer(self._data, self._ledger, state.size, self._halt)
        self._hashed = bool(state.sha256)
        self._size = state.size
        self._missing = Ranges(state.done).missing(state.size)
        self._queue = Queue(self._missing, 1)
        self._most = LARGEST_READ
        self._at_work = 0
        self._moved = threading.Condition()
        self._bodies: set[Body] = set()
        self._threads: list[threading.Thread] = []
        self._to_end = 2
        self._ended = threading.Event()
        self._digest = ""
        self._failure: Exception | None = None

    def run(self, watch: Watch, *, connections: int, whole: bool) -> str:
        """The sha256, or "" where the hub tells none. Raises what `watch` raises, `ForgeError`, `OSError`, `StartOver`.

        `whole` is for servers that know no ranges: one request for all of it, from the start.
        """
        self._queue = Queue(self._missing, connections)
        self._most = min(LARGEST_READ, (BLOCK - RECORD) // connections)
        work = [self._fetch_whole] if whole else [self._fetch_spans] * connections
        for run in [self._hash, self._sync, *work[:FIRST_CONNECTIONS]]:
            self._start(run)
        try:
            self._watch(watch, more=work[FIRST_CONNECTIONS:])
        finally:
            self._stop()
        if self._failure is not None:
            raise self._failure
        return self._digest

    def _start(self, run: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._guarded, run), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, watch: Watch, more: list[Callable[[], None]]) -> None:
        """Until it has ended; the connections in `more` join one by one as long as the others don't fill the line."""
        checked, before = time.monotonic(), self._ledger.total
        while not self._ended.wait(TICK):
            here = self._ledger.total
            if more and here - before < FULL_RATE * TICK:
                self._start(more.pop())
            before = here
            watch(here, self._hasher.position)
            if time.monotonic() - checked >= SPACE_SECONDS:
                space.check(self._folder, 0, "what is being fetched")
                checked = time.monotonic()

    def _stop(self) -> None:
        self._halt.set()
        self._data.stop()
        with self._moved:
            self._moved.notify_all()
            for body in self._bodies:
                body.interrupt()
        self._ledger.stop()
        until = time.monotonic() + LAST_BREATH
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _guarded(self, run: Callable[[], None]) -> None:
        """One thread's work; what goes wrong in it ends the whole."""
        try:
            run()
        except Stopped:
            return
        except (ForgeError, OSError, StartOver) as error:
            self._fail(error)
        except Changed:
            self._fail(StartOver(Retryable("the server has another version now")))
        except NoRanges:
            self._fail(StartOver(Retryable("the server knows no ranges"), whole=True))
        except Exception as error:
            self._fail(InternalError(f"the download failed: {error!r}"))
            raise

    def _fail(self, error: Exception) -> None:
        if not self._ended.is_set():
            self._failure = error
            self._ended.set()

    # --- the readers' threads ---

    def _hash(self) -> None:
        try:
            digest = self._hasher.run()
            self._digest = digest if self._hashed else ""
        except Retryable as failure:
            raise StartOver(failure) from failure
        finally:
            self._data.leave()
        self._end_one()

    def _sync(self) -> None:
        try:
            self._syncer.run()
        finally:
            self._data.leave()
        self._end_one()

    def _end_one(self) -> None:
        """All that was written is hashed, or synced: when it is both, that's all."""
        with self._moved:
            self._to_end -= 1
            if not self._to_end:
                self._ended.set()

    # --- the connections' threads ---

    def _fetch_spans(self) -> None:
        _give_way()
        patience = Patience(self._limits, self._origin)
        while (span := self._take()) is not None:
            start, stop = span
            at = start
            try:
                body = self._link.open(at, stop)
                with contextlib.closing(self._pieces(body, stop - at)) as pieces:
                    for piece in pieces:
                        self._keep(at, piece)
                        at += len(piece)
                        if at - start >= PROGRESS:
                            patience.progressed()
            except Retryable as failure:
                self._give_back(at, stop)
                self._halt.wait(patience.failed(failure))
            else:
                self._give_back(stop, stop)
                patience.progressed()

    def _fetch_whole(self) -> None:
        try:
            at = 0
            with contextlib.closing(self._pieces(self._link.open_whole(), self._size)) as pieces:
                for piece in pieces:
                    self._keep(at, piece)
                    at += len(piece)
        except Retryable as failure:
            raise StartOver(failure, whole=True) from failure

    def _pieces(self, body: Body, length: int) -> Generator[bytes, None, None]:
        """What comes, exactly `length` bytes of it. Raises `Retryable` when there is less."""
        with self._moved:
            self._bodies.add(body)
        try:
            while length and not self._halt.is_set():
                piece = body.read(min(length, self._most))
                if not piece:
                    raise Retryable("the connection broke off")
                length -= len(piece)
                yield piece
        finally:
            with self._moved:
                self._bodies.discard(body)
            body.close()

    def _keep(self, at: int, piece: bytes) -> None:
        self._data.write(at, piece)
        self._ledger.wrote(at, at + len(piece), self._link.etag)

    def _take(self) -> Span | None:
        """The next span; None when there will be none. A span that somebody fetches may still come back."""
        with self._moved:
            self._moved.wait_for(lambda: self._queue.remaining or not self._at_work or self._halt.is_set())
            span = None if self._halt.is_set() else self._queue.take()
            self._at_work += span is not None
            return span

    def _give_back(self, start: int, stop: int) -> None:
        with self._moved:
            self._at_work -= 1
            self._queue.give_back(start, stop)
            self._moved.notify_all()


def _give_way() -> None:
    """Let this thread have a core after the others: on Linux a thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICER)
