"""Requests in a side process, as the API sees them: admission, delivery, and the end of every one of them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from forgelm.api.side_keeper import SideKeeper
from forgelm.config import Limits
from forgelm.errors import EngineFailed, Overloaded, QueueTimeout, Unavailable
from forgelm.ipc.embeddings import Embed, Forget, Vectors
from forgelm.ipc.registry import Kind
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase


class Ticket:
    """One client's request: its vectors as they come."""

    def __init__(self, number: int, name: str = "") -> None:
        self.id = number
        self.name = name
        """What logs call the request."""
        self.arrived = time.monotonic()
        self.vectors: dict[int, bytes] = {}
        self.texts = 0
        self.tokens = 0
        self.begun = asyncio.Event()
        """Something of it was computed, or it has ended."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        """End it with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(EngineFailed(reason, retry_after=1))
        self.begun.set()


class SideClient:
    """Submits, forgets and delivers. The keeper's owner."""

    def __init__(self, kind: Kind, limits: Limits, metrics: Metrics) -> None:
        self._kind = kind
        self._limits = limits
        self._metrics = metrics
        self._ids = count(1)
        self._admitted: dict[int, Ticket] = {}
        self._open: dict[int, Ticket] = {}
        """Those that the process owes something."""
        self._keeper: SideKeeper | None = None
        metrics.server.side_open.read_from(lambda: len(self._admitted), kind)

    def attach(self, keeper: SideKeeper) -> None:
        """Talk to the process through `keeper`."""
        self._keeper = keeper

    # --- requests ---

    @contextmanager
    def admitted(self, name: str = "") -> Iterator[Ticket]:
        """A place for one request, called `name` in logs, for as long as the block. Leftovers are then forgotten.

        Raises `Overloaded`.
        """
        waiting = sum(not ticket.begun.is_set() for ticket in self._admitted.values())
        if waiting >= self._limits.queue:
            raise self._full(waiting)
        ticket = Ticket(next(self._ids), name)
        self._admitted[ticket.id] = ticket
        reason = "abort"
        try:
            yield ticket
            reason = "done"
        except Exception:
            reason = "error"
            raise
        finally:
            # No await may come here: a cancelled task's further awaits are cancelled too.
            del self._admitted[ticket.id]
            self._end(ticket)
            self._metrics.server.side_requests.labels(self._kind, reason).inc()

    def require_ready(self) -> None:
        """Raise `Unavailable` unless the process takes texts now."""
        assert self._keeper is not None
        status = self._keeper.status
        if status.phase is not Phase.READY:
            reason = status.reason or "no reason given"
            raise Unavailable(f"the {self._kind} model is {status.phase.value}: {reason}", retry_after=5)

    async def compute(self, ticket: Ticket, texts: Sequence[bytes]) -> list[bytes]:
        """The vectors of `texts` (token ids, int32), each as little-endian float32.

        Raises `Overloaded`, `Unavailable`, `QueueTimeout` when its turn doesn't come in time, and `EngineFailed`.
        """
        # It may have died since the request was looked at, and its end isn't told to those who come later.
        self.require_ready()
        tokens = sum(map(len, texts)) // 4
        self._require_room(tokens)
        self._metrics.server.side_tokens.labels(self._kind).inc(tokens)
        ticket.texts, ticket.tokens = len(texts), tokens
        assert self._keeper is not None
        for index, text in enumerate(texts):
            self._keeper.send(Embed(ticket.id, index, text, ticket.name))
        self._open[ticket.id] = ticket
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await ticket.begun.wait()
        except TimeoutError:
            raise QueueTimeout(f"waited {self._limits.queue_seconds:.0f} s in the queue", retry_after=5) from None
        await ticket.done
        return [ticket.vectors[index] for index in range(len(texts))]

    def end_all(self, reason: str) -> None:
        """End every request that the process owes something with an error."""
        for ticket in list(self._open.values()):
            self._end(ticket)
            ticket.fail(reason)

    def _end(self, ticket: Ticket) -> None:
        if self._open.pop(ticket.id, None) is not None and len(ticket.vectors) < ticket.texts:
            assert self._keeper is not None
            self._keeper.send(Forget(ticket.id))
        if ticket.done.done() and not ticket.done.cancelled():
            # Whoever gave the request up before its failure came hasn't looked at it.
            ticket.done.exception()

    def _require_room(self, tokens: int) -> None:
        waiting = [ticket for ticket in self._open.values() if not ticket.begun.is_set()]
        # One request may always wait, however much it is.
        if waiting and sum(ticket.tokens for ticket in waiting) + tokens > self._limits.queue_tokens:
            raise self._full(len(waiting))

    def _full(self, waiting: int) -> Overloaded:
        return Overloaded(
            f"the queue of the {self._kind} model is full: {waiting} requests wait",
            retry_after=max(1, min(60, waiting)),
        )

    # --- the keeper's owner ---

    @property
    def has_open_requests(self) -> bool:
        return bool(self._open)

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """Of all requests that were let in and haven't ended, oldest first."""
        return tuple(self._admitted.values())

    def on_vectors(self, vectors: Vectors) -> None:
        """Deliver what a decode gave."""
        size = len(vectors.data) // max(1, len(vectors.places))
        for place, (request, index) in enumerate(vectors.places):
            ticket = self._open.get(request)
            if ticket is None:
                continue
            ticket.vectors[index] = vectors.data[place * size : (place + 1) * size]
            ticket.begun.set()
            if len(ticket.vectors) == ticket.texts:
                del self._open[request]
                # Its task may have been cancelled, and not have run since.
                if not ticket.done.done():
                    ticket.done.set_result(None)

    def on_unusable(self, request: int, reason: str) -> None:
        """End a request that can't be answered in full."""
        ticket = self._open.pop(request, None)
        if ticket is not None:
            ticket.fail(reason)

    def on_down(self, reason: str) -> None:
        """End every request: the process that had them is gone."""
        self.end_all(reason)
