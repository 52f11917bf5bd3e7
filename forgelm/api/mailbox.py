"""What is known here of a request in the engine: its ticket, with a mailbox for each choice.

Filled by `EngineClient`, read by the one task that answers the request.
"""

import asyncio

import msgspec

from forgelm.ipc.messages import Budget, Constraint, FinishReason, Generate, Sampling, Timings, TokenLogprobs


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
    choices: int = 1
    logprobs: int = -1
    """See `Generate.logprobs`."""
    constraint: Constraint | None = None
    min_tokens: int = 0
    budget: Budget | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4

    def message(self, request_id: int) -> Generate:
        """The engine's order for it."""
        return Generate(request_id, **{name: getattr(self, name) for name in self.__struct_fields__})


class Mailbox:
    """One choice's results, merged until they are read. Filled by the client, read by one task."""

    __slots__ = ("cached", "error", "finish", "first_token", "last_token", "logprobs", "timings", "tokens")

    def __init__(self) -> None:
        self.first_token = 0.0
        self.last_token = 0.0
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        """One per token, where asked for."""
        self.finish: FinishReason | None = None
        self.error = ""
        self.cached = 0
        self.timings: Timings | None = None

    def take(self) -> tuple[list[int], list[TokenLogprobs]]:
        """The tokens that came since the last call, and their log-probabilities."""
        tokens, self.tokens = self.tokens, []
        logprobs = self.logprobs
        if logprobs:
            self.logprobs = []
        return tokens, logprobs


class Ticket:
    """One request in the engine: when it came and what became of its choices."""

    __slots__ = ("_waiter", "arrived", "boxes", "id", "news", "ping_due", "prompt_tokens", "started", "touched")

    def __init__(self, request_id: int, prompt_tokens: int, choices: int, now: float) -> None:
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.boxes = [Mailbox() for _ in range(choices)]
        self.arrived = now
        self.touched = now
        """When its client last got bytes."""
        self.ping_due = False
        """Set when that is so long ago that a ping shall be sent."""
        self.started = 0.0
        """When it left the engine's queue; 0 while it waits."""
        self.news = False
        """Something came that nobody has read."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether every choice has."""
        return all(box.finish for box in self.boxes)

    @property
    def aborted(self) -> bool:
        """Whether it was given up."""
        return any(box.finish == "abort" for box in self.boxes)

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed for it: other choices share what the first one computes."""
        return self.boxes[0].cached

    async def wait(self) -> None:
        """Return when there is something to read, or a ping is due."""
        if not self.news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.news = False

    def wake(self) -> None:
        """Let the reader run."""
        self.news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def times(self) -> Timings:
        """Where the time went, over all choices: the engine's word, or ours for an answer that was ended here."""
        times = [box.timings or self._seen(box) for box in self.boxes]
        if len(times) == 1:
            return times[0]
        return Timings(
            queue=min(each.queue for each in times),
            prefill=min(each.prefill for each in times),
            decode=max(each.decode for each in times),
            preemptions=sum(each.preemptions for each in times),
        )

    def _seen(self, box: Mailbox) -> Timings:
        first = box.first_token or box.last_token
        return Timings(self.started - self.arrived, first - self.started, box.last_token - first, 0)
