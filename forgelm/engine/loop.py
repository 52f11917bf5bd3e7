"""The engine's one thread: take in messages, plan, run, apply, send one `Step`. Blocks only when there is no work."""

import time

from forgelm import log
from forgelm.engine.backend import Backend
from forgelm.engine.channel import Channel
from forgelm.engine.journal import Journal
from forgelm.engine.plan import NO_DRAFTS
from forgelm.engine.scheduler import Scheduler
from forgelm.ipc.messages import Abort, Drain, Generate, Spare, Step, ToEngine, Working

ANNOUNCE_SECONDS = 1.0
"""Steps predicted to take longer are announced, so that the watchdog waits for them."""
IDLE_SECONDS = 1.0
"""How often an engine without requests looks whether something is to be written to disk."""


class Loop:
    """Runs until drained or until the peer is gone."""

    def __init__(self, channel: Channel[ToEngine], scheduler: Scheduler, backend: Backend) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._backend = backend
        self._draining = False
        self._journal = Journal()
        self._log = log.get("engine")

    def run(self) -> None:
        """Serve. Returns after `Drain` once all requests have ended.

        Raises `PeerGone`, `FrameError` when the peer sends nonsense, or `BackendBroken`.
        """
        scheduler = self._scheduler
        while not (self._draining and not scheduler.has_work):
            self._take_in(0.0 if scheduler.has_work else self._patience())
            if scheduler.has_work or scheduler.archive(time.monotonic()):
                self._step()
        while scheduler.archive(time.monotonic(), at_once=True):
            self._step()

    def _patience(self) -> float | None:
        """How long to wait for a message when there is nothing to compute."""
        return IDLE_SECONDS if self._scheduler.memory.archives_later(time.monotonic()) else None

    def _step(self) -> None:
        scheduler = self._scheduler
        asks = scheduler.ask(time.monotonic())
        drafts = self._backend.draft(asks) if asks else NO_DRAFTS
        plan = scheduler.plan(time.monotonic(), drafts)
        if plan.predicted > ANNOUNCE_SECONDS:
            self._channel.send(Working(plan.predicted))
        outcome = self._backend.run(plan)
        deltas = scheduler.apply(plan, outcome, time.monotonic())
        started = scheduler.take_started()
        stats = scheduler.stats(plan, outcome)
        self._channel.send(Step(tuple(deltas), stats, started, scheduler.take_admissions()))
        self._journal.begun(started)
        self._journal.went(deltas)

    def _take_in(self, patience: float | None) -> None:
        for message in self._channel.receive(patience):
            now = time.monotonic()
            match message:
                case Generate():
                    self._journal.taken(message)
                    self._scheduler.add(message, now)
                case Abort(request_id, choice):
                    self._journal.aborted(request_id, choice)
                    self._scheduler.abort(request_id, now, choice)
                case Spare(cores):
                    self._backend.spare(cores)
                case Drain():
                    self._draining = True
                    self._log.debug("draining")
