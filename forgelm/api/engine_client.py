"""Requests in the engine, as the API sees them: a mailbox each, admission, and the end of every one of them.

The API is the engine's only source of requests, so the bound on waiting ones is kept here, exactly and before anything
is promised to a client. Results of a step are merged into mailboxes without waiting for any reader.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import count

import msgspec

from forgelm.config import Limits
from forgelm.errors import EngineFailed, Overloaded, Unavailable
from forgelm.ipc.messages import Abort, Delta, FinishReason, Generate, Sampling, Stats, Step, Timings
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase, Status, Supervisor

IDLE = Stats(running=0, waiting=0, cells_used=0, seconds=0.0, prefill_tokens=0, decode_tokens=0, preemptions=0)


class Job(msgspec.Struct, frozen=True):
    """What the engine needs to know of a request; nothing in it can be wrong any more."""

    prompt: bytes
    """Token ids, little-endian int32."""
    max_tokens: int
    """At least 1; prompt and answer together fit the context."""
    sampling: Sampling
    stop_tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    """See `Generate.boundaries`."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4


class Mailbox:
    """One request's results, merged until they are read. Filled by the client, read by one task."""

    __slots__ = (
        "_waiter",
        "arrived",
        "cached",
        "error",
        "finish",
        "first_token",
        "id",
        "last_token",
        "ping_due",
        "prompt_tokens",
        "started",
        "timings",
        "tokens",
        "touched",
    )

    def __init__(self, request_id: int, prompt_tokens: int, now: float) -> None:
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.arrived = now
        self.first_token = 0.0
        self.last_token = 0.0
        self.touched = now
        """When its client last got bytes."""
        self.ping_due = False
        """Set when that is so long ago that a ping shall be sent."""
        self.started = 0.0
        """When it left the engine's queue; 0 while it waits."""
        self.tokens: list[int] = []
        self.finish: FinishReason | None = None
        self.error = ""
        self.cached = 0
        self.timings: Timings | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return when there is something to read, or a ping is due."""
        if self.tokens or self.finish:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def times(self) -> Timings:
        """Where the time went: the engine's word, or ours for an answer that was ended here (a stop string)."""
        if self.timings is not None:
            return self.timings
        first = self.first_token or self.last_token
        return Timings(self.started - self.arrived, first - self.started, self.last_token - first, 0)

    def take(self) -> list[int]:
        """The tokens that came since the last call."""
        tokens, self.tokens = self.tokens, []
        return tokens

    def wake(self) -> None:
        """Let the reader run."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Submits, aborts and delivers. The supervisor's listener."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._ids = count(1)
        self._open: dict[int, Mailbox] = {}
        self._waiting = 0
        self._waiting_tokens = 0
        self._supervisor: Supervisor | None = None
        self.stats = IDLE
        self.on_first_answer: Callable[[], None] | None = None
        """Called once, when the first request has been answered in full."""

    def attach(self, supervisor: Supervisor) -> None:
        """Talk to the engine through `supervisor`; gauges read from here on."""
        self._supervisor = supervisor
        metrics = self._metrics
        metrics.running.read_from(lambda: self.stats.running)
        metrics.waiting.read_from(lambda: self._waiting)
        metrics.open.read_from(lambda: len(self._open))
        metrics.cells.read_from(lambda: self.stats.cells_used)
        metrics.cells_cached.read_from(lambda: self.stats.cells_cached)
        metrics.host_bytes.read_from(lambda: self.stats.host_bytes)
        metrics.preemptions.read_from(lambda: self.stats.preemptions)
        metrics.ready.read_from(lambda: float(self.status.phase is Phase.READY))
        metrics.restarts.read_from(lambda: self.status.restarts)

    @property
    def status(self) -> Status:
        """The engine's state."""
        return self._supervisor.status if self._supervisor else Status(Phase.LOADING)

    # --- requests ---

    def require_ready(self) -> None:
        """Raise `Unavailable` unless the engine takes requests now."""
        status = self.status
        if status.phase is Phase.READY:
            return
        if status.phase is Phase.LOADING:
            raise Unavailable(f"the model is loading ({status.percent:.0f} %)", retry_after=2)
        raise Unavailable(f"the engine is {status.phase.value}: {status.reason or 'no reason given'}", retry_after=5)

    def submit(self, job: "Job") -> Mailbox:
        """Queue a request and return its mailbox. Raises `Unavailable` or `Overloaded`, and then nothing is queued."""
        self.require_ready()
        self._require_room(job.prompt_tokens)
        assert self._supervisor is not None
        box = Mailbox(next(self._ids), job.prompt_tokens, time.monotonic())
        self._supervisor.send(
            Generate(box.id, job.prompt, job.max_tokens, job.sampling, job.stop_tokens, job.boundaries)
        )
        self._open[box.id] = box
        self._waiting += 1
        self._waiting_tokens += job.prompt_tokens
        self._metrics.prompt_tokens.inc(job.prompt_tokens)
        return box

    def abort(self, box: Mailbox) -> None:
        """Forget a request; harmless when it has ended. Needs no await, so it works while a task is cancelled."""
        self._withdraw(box, "abort")

    def complete(self, box: Mailbox) -> None:
        """End a request whose answer is whole for its client (a stop string came): not an abort in the metrics."""
        self._withdraw(box, "stop")

    def end_all(self, reason: str) -> None:
        """End every open request with an error; the engine, if there is one, forgets them."""
        for box in list(self._open.values()):
            self._fail(box, reason)

    def _fail(self, box: Mailbox, reason: str) -> None:
        box.error = reason
        self._withdraw(box, "error")
        box.wake()

    def _withdraw(self, box: Mailbox, reason: FinishReason) -> None:
        if self._close(box, reason) and self._supervisor is not None:
            self._supervisor.send(Abort(box.id))

    @property
    def has_open_requests(self) -> bool:
        return bool(self._open)

    def _require_room(self, prompt_tokens: int) -> None:
        limits = self._limits
        full = self._waiting >= limits.queue
        # One request may always wait, however long its prompt; the context bounds it.
        too_long = self._waiting and self._waiting_tokens + prompt_tokens > limits.queue_tokens
        if full or too_long:
            raise Overloaded(
                f"the queue is full: {self._waiting} requests with {self._waiting_tokens} prompt tokens wait",
                retry_after=max(1, min(60, self._waiting)),
            )

    # --- the supervisor's listener ---

    def on_step(self, step: Step) -> None:
        """Deliver what a step produced."""
        self.stats = step.stats
        now = time.monotonic()
        for request_id in step.started:
            box = self._open.get(request_id)
            if box is not None:
                self._leave_queue(box, now)
        generated = 0
        for delta in step.deltas:
            box = self._open.get(delta.id)
            if box is not None:
                generated += len(delta.tokens)
                self._deliver(box, delta, now)
        if generated:
            self._metrics.generated_tokens.inc(generated)

    def on_down(self, reason: str) -> None:
        """End every open request with an error: the engine that had them is gone."""
        self.stats = IDLE
        self.end_all(reason)

    def _deliver(self, box: Mailbox, delta: Delta, now: float) -> None:
        if delta.tokens:
            self._observe_token(box, now)
            box.tokens += delta.tokens
        # An answer that is ended here, by a stop string or because its client left, gets no last delta.
        box.cached = max(box.cached, delta.cached)
        if delta.finish is not None:
            box.timings = delta.timings
            box.error = delta.error
            self._close(box, delta.finish)
        box.wake()

    def _observe_token(self, box: Mailbox, now: float) -> None:
        if box.first_token:
            self._metrics.itl.observe(now - box.last_token)
        else:
            box.first_token = now
            self._metrics.ttft.observe(now - box.arrived)
        box.last_token = now

    def _leave_queue(self, box: Mailbox, now: float) -> None:
        if not box.started:
            box.started = now
            self._waiting -= 1
            self._waiting_tokens -= box.prompt_tokens

    def _close(self, box: Mailbox, reason: FinishReason) -> bool:
        """The one place where a request ends here; False when it had ended already."""
        if self._open.pop(box.id, None) is None:
            return False
        self._leave_queue(box, time.monotonic())
        box.finish = reason
        self._metrics.requests.labels(reason).inc()
        if reason == "error":
            self._metrics.errors.labels(EngineFailed.code).inc()
        self._metrics.cached_tokens.inc(box.cached)
        if self.on_first_answer is not None and reason in ("stop", "length"):
            callback, self.on_first_answer = self.on_first_answer, None
            callback()
        return True

    # --- time ---

    async def tick(self, interval: float = 1.0) -> None:
        """Wake silent readers for their pings and end requests that waited too long. Runs for ever."""
        while True:
            await asyncio.sleep(interval)
            self.check_times(time.monotonic())

    def check_times(self, now: float) -> None:
        """One round of `tick` at time `now`."""
        for box in list(self._open.values()):
            if not box.started and now - box.arrived > self._limits.queue_seconds:
                self._fail(box, f"waited {self._limits.queue_seconds:.0f} s in the queue")
            elif now - box.touched >= self._limits.ping_seconds:
                box.touched = now
                box.ping_due = True
                box.wake()


def failure(box: Mailbox) -> EngineFailed:
    """The error a client gets for a mailbox that ended with `error`."""
    return EngineFailed(box.error or "the engine failed", retry_after=1)
