"""One download: how far it is, who watches it, and how to stop it. What it does and when, `jobs` knows."""

import contextvars
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from forgelm import log
from forgelm.errors import ForgeError, InternalError, RequestError
from forgelm.ipc.registry import Download, Failure, State
from forgelm.registry.planning import Planned
from forgelm.registry.progress import Meter, Progress

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
Notify = Callable[[], None]
"""Called from any thread at each change; it must return at once."""


class Job:
    """A download that is queued, at work, or ended."""

    def __init__(self, download: Download, planned: Planned) -> None:
        self.planned = planned
        self.cancel = threading.Event()
        """Tells whoever fetches it to stop."""
        self.given_up = False
        """Somebody asked that it stops for good."""
        self.purge = False
        """And that nothing is left of it."""
        self.over = threading.Event()
        """Set when nothing works on it any more."""
        self.context = contextvars.copy_context()
        """Of whoever asked for it first: its lines in the log name that request."""
        self._download = download
        self._meter = Meter()
        self._watchers: set[Notify] = set()
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        return self._download.id

    @property
    def place(self) -> str:
        """Where the model is, or will be."""
        return self._download.path

    @property
    def ended(self) -> bool:
        return self._download.ended

    def give_up(self, *, purge: bool) -> None:
        """Have it stop, and not go on after a restart."""
        self.given_up, self.purge = True, purge
        self.cancel.set()

    def snapshot(self) -> Download:
        """As it is now."""
        with self._lock:
            now = self._download
            if now.state != "downloading":
                return now
            rate, eta = self._meter.pace(now.total - now.bytes)
            return msgspec.structs.replace(now, rate=rate, eta=eta)

    def advance(self, progress: Progress) -> None:
        """What whoever fetches it tells."""
        state: State = "verifying" if progress.state == "verifying" else "downloading"
        with self._lock:
            if state == "downloading":
                self._meter.update(progress.bytes)
            # What is hashed now was here before.
            here = progress.bytes if state == "downloading" else max(progress.bytes, self._download.bytes)
            total = progress.total or self._download.total
            self._download = msgspec.structs.replace(self._download, state=state, bytes=here, total=total)
        self._tell()

    def become(self, state: State, *, model: str = "", error: Failure | None = None) -> None:
        """Take on another state."""
        with self._lock:
            here = self._download.total if state == "done" else self._download.bytes
            self._download = msgspec.structs.replace(self._download, state=state, model=model, error=error, bytes=here)
        self._tell()

    @contextmanager
    def watched(self, notify: Notify) -> Iterator[None]:
        """Have `notify` called at each change."""
        with self._lock:
            self._watchers.add(notify)
        try:
            yield
        finally:
            with self._lock:
                self._watchers.discard(notify)

    def _tell(self) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for notify in watchers:
            notify()


def failure_of(error: Exception) -> Failure:
    """What clients are told of `error`. A bug of ours goes to the log."""
    if isinstance(error, RequestError):
        return Failure(error.code or error.type, str(error))
    if isinstance(error, ForgeError):
        return Failure(_WORD.sub("_", type(error).__name__).lower(), str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure("io_error", f"{where}{error.strerror or error}")
    log.get("registry").error("a job failed", exc_info=error)
    return Failure(InternalError.code or "", "the registry failed on this; its log has the details")
