"""Saved states on disk, in the background: the engine's thread asks, and polls for what has become of it.

Two threads, because they differ in urgency: a request waits for the reader, and the writer may only have what processor
time nobody else wants. Both spend it in calls that release the GIL. What a state means, and which is worth keeping, is
decided elsewhere.
"""

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread

import numpy as np

from forgelm.engine.disk_format import Bytes, Tokens
from forgelm.engine.disk_store import DiskEntry, State, StateStore, Stopped

BACKLOG = 512 << 20
KEEP_FREE = 1 << 30


@dataclass(frozen=True, slots=True)
class Written:
    """The end of a write: the state is on disk, or not."""

    name: str
    ok: bool


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """The end of a read. `data` is `None` when there is no such state, or it was damaged and is gone."""

    name: str
    data: Bytes | None
    """Shape (bytes,). Not to be changed: it may be what is just being written."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """The state was deleted to make room, by us or by another process that shares the directory."""

    name: str


Finished = Written | Loaded | Evicted


@dataclass(slots=True, eq=False)
class _Write:
    name: str
    state: State
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _Delete:
    name: str


class DiskTier:
    """One directory of states. The methods are for one thread; only `index`, `wait` and `close` take their time."""

    def __init__(
        self,
        directory: Path,
        identity: str,
        limit_bytes: int,
        *,
        backlog_bytes: int = BACKLOG,
        keep_free: int = KEEP_FREE,
    ) -> None:
        """`identity` is of what computes the states: model, KV type, build. Others' states count and are left alone.

        `limit_bytes` bounds the directory's files, `backlog_bytes` the states that wait to be written, and `keep_free`
        bytes of the file system are left to others. A directory that can't be used is logged, and nothing is kept.
        """
        self._limit = limit_bytes
        self._backlog_limit = backlog_bytes
        self._changed = Condition()
        """Guards what follows; held for moments only."""
        self._finished: deque[Finished] = deque()
        self._jobs: deque[_Write | _Delete] = deque()
        self._pending: dict[str, _Write] = {}
        """Writes that haven't ended."""
        self._backlog = 0
        """Bytes of `_jobs` and of the one that is being written."""
        self._reads: deque[str] = deque()
        self._reading = False
        self._closing = False
        self._stopped = False
        self._store = StateStore(directory, identity, limit_bytes, keep_free, self._evicted)
        self._writer = Thread(target=self._write_all, name="disk-writer", daemon=True)
        self._reader = Thread(target=self._read_all, name="disk-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    def write(self, tokens: Tokens, partial: bool, data: Bytes) -> str | None:
        """Begin to write a state, shape (bytes,), that nobody changes any more; its name, or `None` if it isn't taken.

        One `Written` follows, also for a state that is on disk already; one that waits to be written is answered once
        for all. Not taken is what exceeds the limit or the backlog (unless that is empty), and anything after an error
        of the disk or after `close`.
        """
        state = State(partial, np.ascontiguousarray(tokens, "<i4").tobytes(), np.ascontiguousarray(data))
        job = _Write(self._store.name(state), state)
        with self._changed:
            if not self._takes(len(data)):
                return None
            if job.name not in self._pending:
                self._pending[job.name] = job
                self._backlog += len(data)
                self._give(job)
        return job.name

    def read(self, name: str) -> None:
        """Begin to read a state. One `Loaded` follows."""
        with self._changed:
            job = self._pending.get(name)
            if job is not None:
                self._finish(Loaded(name, job.state.data))
            elif self._closing or name not in self._store:
                self._finish(Loaded(name, None))
            else:
                self._reads.append(name)
                self._changed.notify_all()

    def delete(self, name: str) -> None:
        """Delete a state. A write of it that hasn't ended ends with not ok."""
        with self._changed:
            job = self._pending.pop(name, None)
            if job is not None:
                job.cancelled = True
                self._finish(Written(name, False))
            self._store.forget(name)
            self._give(_Delete(name))

    def poll(self) -> list[Finished]:
        """What has ended since the last call, in order. Never waits."""
        found = []
        while self._finished:
            found.append(self._finished.popleft())
        return found

    def wait(self, seconds: float) -> None:
        """Sleep until `poll` has something, at most for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished, seconds)

    def index(self) -> list[DiskEntry]:
        """Every state of our identity, last used first; damaged files are deleted. Reads headers only."""
        return self._store.index()

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long, and stop. Harmless when called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(seconds)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _takes(self, size: int) -> bool:
        fits = not self._backlog or self._backlog + size <= self._backlog_limit
        return fits and size <= self._limit and not (self._store.quiet or self._closing)

    def _give(self, job: _Write | _Delete) -> None:
        self._jobs.append(job)
        self._changed.notify_all()

    def _finish(self, end: Finished) -> None:
        self._finished.append(end)
        self._changed.notify_all()

    def _evicted(self, name: str) -> None:
        with self._changed:
            self._finish(Evicted(name))

    # --- the writer's thread ---

    def _write_all(self) -> None:
        _use_idle_time_only()
        while (job := self._next_job()) is not None:
            self._do(job)
            # Waiting for the next one isn't a reason to keep a state in memory.
            del job

    def _do(self, job: _Write | _Delete) -> None:
        match job:
            case _Write(_, state):
                self._end_write(job, self._store.save(state, lambda: self._go_on(job)))
            case _Delete(name):
                self._store.delete(name)

    def _next_job(self) -> _Write | _Delete | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing)
            return self._jobs.popleft() if self._jobs else None

    def _go_on(self, job: _Write) -> None:
        """Let reads go first. Raises `Stopped` when the job isn't to be done any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not (self._reading or self._reads))
            if job.cancelled or self._stopped or self._store.quiet:
                raise Stopped

    def _end_write(self, job: _Write, ok: bool) -> None:
        with self._changed:
            self._backlog -= len(job.state.data)
            if not job.cancelled:
                del self._pending[job.name]
                self._finish(Written(job.name, ok))

    # --- the reader's thread ---

    def _read_all(self) -> None:
        while (name := self._next_read()) is not None:
            self._end_read(Loaded(name, self._store.load(name)))

    def _end_read(self, end: Loaded) -> None:
        with self._changed:
            self._reading = False
            self._finish(end)

    def _next_read(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._reads or self._closing)
            if not self._reads:
                return None
            self._reading = True
            return self._reads.popleft()


def _use_idle_time_only() -> None:
    """Run this thread where a core has nothing else to do. Its disk access gives way along with it."""
    # Not on every system, nor in every container; there it competes like any thread.
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
