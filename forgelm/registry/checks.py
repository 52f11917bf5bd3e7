"""A model being hashed, for those who watch: `Library.verify` as something that goes on."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from forgelm.ipc.registry import Installed, Verification
from forgelm.registry.job import Notify, failure_of
from forgelm.registry.library import Library
from forgelm.registry.progress import Cancelled, Meter, Progress
from forgelm.registry.working import working


class Check:
    """One check, in a thread of its own."""

    def __init__(self, library: Library, model: Installed) -> None:
        self._library = library
        self._now = Verification(model.id, "queued", total=model.bytes)
        self._meter = Meter()
        self._cancel = threading.Event()
        self._notify: Notify = lambda: None
        self.failure: Exception | None = None
        """Why it failed."""

    def start(self) -> None:
        """Begin."""
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run,), name="check", daemon=True).start()

    def stop(self) -> None:
        """Nobody wants to know any more."""
        self._cancel.set()

    def snapshot(self) -> Verification:
        """As it is now."""
        now = self._now
        if now.state != "verifying":
            return now
        rate, eta = self._meter.pace(now.total - now.bytes)
        return msgspec.structs.replace(now, rate=rate, eta=eta)

    @contextmanager
    def watched(self, notify: Notify) -> Iterator[None]:
        """Have `notify` called at each change."""
        self._notify = notify
        yield

    def _advance(self, progress: Progress) -> None:
        if progress.state == "verifying":
            self._meter.update(progress.bytes)
            self._become(msgspec.structs.replace(self._now, state="verifying", bytes=progress.bytes))

    def _run(self) -> None:
        try:
            with working():
                model = self._library.verify(self._now.model, self._advance, self._cancel)
        except Cancelled:
            return
        except Exception as error:  # noqa: BLE001  whatever it was, who waits is told
            self.failure = error
            self._become(msgspec.structs.replace(self._now, state="failed", error=failure_of(error)))
        else:
            self._become(msgspec.structs.replace(self._now, state="done", bytes=self._now.total, installed=model))

    def _become(self, now: Verification) -> None:
        self._now = now
        self._notify()
