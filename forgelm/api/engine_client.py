"""Requests in the engine, as the API sees them: admission, delivery, and the end of every one of them.

The API is the engine's only source of requests, so the bound on waiting ones is kept here, exactly and before anything
is promised to a client. Results of a step are merged into mailboxes without waiting for any reader.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import count

from forgelm.api.mailbox import NOBODY, Caller, Job, Mailbox, Ticket
from forgelm.config import Limits
from forgelm.errors import (
    EngineFailed,
    InternalError,
    InvalidRequest,
    Overloaded,
    QueueTimeout,
    RequestError,
    Unavailable,
)
from forgelm.ipc.messages import Abort, Delta, FinishReason, Stats, Step
from forgelm.metrics import Metrics
from forgelm.metrics.requests import ANSWERED, Cause
from forgelm.supervisor import Phase, Status, Supervisor

IDLE = Stats(running=0, waiting=0, cells_used=0, seconds=0.0, prefill_tokens=0, decode_tokens=0, preemptions=0)


class EngineClient:
    """Submits, aborts and delivers. The supervisor's listener."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._ids = count(1)
        self._open: dict[int, Ticket] = {}
        self._waiting = 0
        self._waiting_tokens = 0
        self._supervisor: Supervisor | None = None
        self.stats = IDLE
        self.on_first_answer: Callable[[], None] | None = None
        """Called once, when the first request has been answered in full."""
        self._show()

    def attach(self, supervisor: Supervisor, model: str, profile: str) -> None:
        """Talk to the engine through `supervisor`, which serves `model` in the sizes of `profile`."""
        self._supervisor = supervisor
        self._metrics.requests.serve(model, profile)

    def _show(self) -> None:
        """Let gauges be read from here."""
        requests, steps = self._metrics.requests, self._metrics.steps
        requests.open.read_from(lambda: len(set(self._open.values())))
        steps.running.read_from(lambda: self.stats.running)
        steps.cells.read_from(lambda: self.stats.cells_used)
        steps.cells_cached.read_from(lambda: self.stats.cells_cached)
        steps.cells_highest.read_from(lambda: self.stats.cells_highest)
        steps.host_bytes.read_from(lambda: self.stats.host_bytes)

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

    def submit(self, *jobs: Job, caller: Caller = NOBODY) -> Ticket:
        """Queue a request's prompts, which have as many choices each, and return its ticket.

        Raises `Unavailable` or `Overloaded`, and then nothing is queued.
        """
        self.require_ready()
        prompt_tokens = sum(job.prompt_tokens for job in jobs)
        self._require_room(len(jobs), prompt_tokens)
        assert self._supervisor is not None
        ids = [next(self._ids) for _ in jobs]
        ticket = Ticket(ids[0], jobs, time.monotonic(), caller)
        for request_id, job in zip(ids, jobs, strict=True):
            self._supervisor.send(job.message(request_id, caller.name))
            self._open[request_id] = ticket
        self._waiting += len(jobs)
        self._waiting_tokens += prompt_tokens
        self._metrics.requests.prompt.inc(prompt_tokens)
        return ticket

    def abort(self, ticket: Ticket, cause: Cause = "client_left") -> None:
        """Forget a request; harmless when it has ended. Needs no await, so it works while a task is cancelled."""
        if ticket.id in self._open:
            ticket.cause = ticket.cause or cause
            self._send_aborts(ticket)
            self._end_boxes(ticket, "abort")

    def break_off(self, ticket: Ticket, error: InternalError) -> None:
        """Forget a request that can't be answered because of a bug of ours, and count what its client is told."""
        self._metrics.requests.refuse(error)
        self.abort(ticket, "internal_error")

    def complete(self, ticket: Ticket, choice: int) -> None:
        """End a choice whose answer is whole for its client (a stop string came): not an abort in the metrics."""
        if ticket.boxes[choice].finish is None:
            self._send_abort(Abort(*ticket.address(choice)))
            self._close(ticket, ticket.boxes[choice], "stop")

    def end_all(self, reason: str, cause: Cause) -> None:
        """End every open request with an error; the engine, if there is one, forgets them."""
        for ticket in set(self._open.values()):
            self._fail(ticket, reason, cause)

    def end_waiting(self, reason: str, cause: Cause) -> None:
        """End every request that hasn't begun with an error."""
        for ticket in set(self._open.values()):
            if not ticket.started:
                self._fail(ticket, reason, cause)

    def _fail(self, ticket: Ticket, reason: str, cause: Cause) -> None:
        ticket.cause = ticket.cause or cause
        self._send_aborts(ticket)
        self._end_boxes(ticket, "error", reason)
        ticket.wake()

    def _end_boxes(self, ticket: Ticket, reason: FinishReason, error: str = "") -> None:
        for box in ticket.boxes:
            if box.finish is None:
                box.error = error
                self._close(ticket, box, reason)

    def _send_aborts(self, ticket: Ticket) -> None:
        for request_id in ticket.ids:
            self._send_abort(Abort(request_id))

    def _send_abort(self, abort: Abort) -> None:
        if self._supervisor is not None:
            self._supervisor.send(abort)

    @property
    def has_open_requests(self) -> bool:
        return bool(self._open)

    @property
    def tickets(self) -> list[Ticket]:
        """The open requests, oldest first."""
        return list(dict.fromkeys(self._open.values()))

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting

    def _require_room(self, prompts: int, prompt_tokens: int) -> None:
        limits = self._limits
        full = self._waiting + prompts > limits.queue
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
            ticket = self._open.get(request_id)
            if ticket is not None:
                # The step is over: what it computed for the request was no waiting.
                self._leave_queue(ticket, request_id, max(ticket.arrived, now - step.stats.seconds))
        generated = 0
        for delta in step.deltas:
            ticket = self._open.get(delta.id)
            if ticket is not None and ticket.box(delta.id, delta.choice).finish is None:
                generated += len(delta.tokens)
                self._deliver(ticket, delta, now)
        self._metrics.on_step(step, generated, now)

    def on_down(self, reason: str) -> None:
        """End every open request with an error: the engine that had them is gone."""
        self.stats = IDLE
        self._metrics.steps.engine_gone()
        self.end_all(reason, "engine_down")

    def _deliver(self, ticket: Ticket, delta: Delta, now: float) -> None:
        box = ticket.box(delta.id, delta.choice)
        if delta.tokens:
            self._observe_token(ticket, box, now)
            box.tokens += delta.tokens
            box.logprobs += delta.logprobs
        # An answer that is ended here, by a stop string or because its client left, gets no last delta.
        box.cached = max(box.cached, delta.cached)
        if delta.finish is not None:
            box.timings = delta.timings
            box.error = delta.error
            self._close(ticket, box, delta.finish)
        ticket.wake()

    def _observe_token(self, ticket: Ticket, box: Mailbox, now: float) -> None:
        if box.first_token:
            self._metrics.requests.observe_gap(now - box.last_token)
        else:
            box.first_token = now
            self._metrics.requests.observe_ttft(now - ticket.asked)
        box.last_token = now

    def _leave_queue(self, ticket: Ticket, request_id: int, now: float) -> None:
        prompt_tokens = ticket.queued.pop(request_id, None)
        if prompt_tokens is not None:
            ticket.started = ticket.started or now
            self._waiting -= 1
            self._waiting_tokens -= prompt_tokens

    def _close(self, ticket: Ticket, box: Mailbox, reason: FinishReason) -> None:
        """The one place where a choice ends here, and with the last one its request."""
        box.finish = reason
        if not ticket.ended:
            return
        now = time.monotonic()
        for request_id in ticket.ids:
            del self._open[request_id]
            self._leave_queue(ticket, request_id, now)
        self._count(ticket, now)
        if self.on_first_answer is not None and reason in ANSWERED:
            callback, self.on_first_answer = self.on_first_answer, None
            callback()

    def _count(self, ticket: Ticket, now: float) -> None:
        """Enter a request that has ended in the metrics, once, by the worst that became of its choices."""
        requests, reason = self._metrics.requests, ticket.finish
        requests.cached.inc(ticket.cached)
        if reason in ANSWERED:
            requests.end(reason, None, "")
            requests.answered(now - ticket.asked, ticket.times(), ticket.prompt_tokens, ticket.generated)
        elif reason == "refused":
            requests.end(reason, None, InvalidRequest.code)
        else:
            code = _error(ticket).code if reason == "error" else ""
            requests.end(reason, ticket.cause or "engine_error", code)

    # --- time ---

    async def tick(self, interval: float = 1.0) -> None:
        """Wake silent readers for their pings and end requests that waited too long. Runs for ever."""
        while True:
            await asyncio.sleep(interval)
            self.check_times(time.monotonic())

    def check_times(self, now: float) -> None:
        """One round of `tick` at time `now`."""
        for ticket in list(self._open.values()):
            if not ticket.started and now - ticket.arrived > self._limits.queue_seconds:
                self._fail(ticket, f"waited {self._limits.queue_seconds:.0f} s in the queue", "queue_timeout")
            elif now - ticket.touched >= self._limits.ping_seconds:
                ticket.touched = now
                ticket.ping_due = True
                ticket.wake()


def failure(ticket: Ticket, box: Mailbox) -> RequestError:
    """The error a client gets for a choice that ended with `error`."""
    return _error(ticket)(box.error or "the engine failed", retry_after=1)


def _error(ticket: Ticket) -> type[EngineFailed | QueueTimeout]:
    return QueueTimeout if ticket.cause == "queue_timeout" else EngineFailed
