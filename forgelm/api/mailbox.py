"""What is known here of a client's request in the engine: its ticket, with a mailbox for each choice.

Filled by `EngineClient`, read by the one task that answers the request.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from forgelm.ipc.messages import (
    Budget,
    Constraint,
    Drafting,
    FinishReason,
    Generate,
    Sampling,
    Timings,
    TokenLogprobs,
)
from forgelm.metrics.requests import Cause


class Job(msgspec.Struct, frozen=True):
    """What the engine needs to know of a prompt and its answers; nothing in it can be wrong any more."""

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
    drafting: Drafting = Drafting()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4

    def message(self, request_id: int, name: str = "") -> Generate:
        """The engine's order for it."""
        return Generate(request_id, name=name, **{name: getattr(self, name) for name in self.__struct_fields__})


class Caller(NamedTuple):
    """Who asks, for logs and for `/status`."""

    name: str = ""
    """The request's: what its client got as `X-Request-Id`."""
    model: str = ""
    asked: float = 0.0
    """When, by the monotonic clock; 0 is now."""


NOBODY = Caller()
WORST_FIRST: tuple[FinishReason, ...] = ("error", "refused", "abort", "length", "stop")


class Mailbox:
    """One choice's results, merged until they are read. Filled by the client, read by one task."""

    __slots__ = ("cached", "error", "finish", "first_token", "last_token", "logprobs", "taken", "timings", "tokens")

    def __init__(self) -> None:
        self.taken = 0
        """Tokens that were read."""
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
        self.taken += len(tokens)
        logprobs = self.logprobs
        if logprobs:
            self.logprobs = []
        return tokens, logprobs

    @property
    def generated(self) -> int:
        """Tokens that came, read or not."""
        return self.taken + len(self.tokens)


class Ticket:
    """One client's request: when it came and what became of its choices.

    Each of its prompts is a request of its own to the engine, and its choices lie side by side.
    """

    __slots__ = (
        "_choices",
        "_waiter",
        "arrived",
        "asked",
        "boxes",
        "caller",
        "cause",
        "id",
        "news",
        "ping_due",
        "prompt_tokens",
        "queued",
        "started",
        "touched",
    )

    def __init__(self, first_id: int, jobs: Sequence[Job], now: float, caller: Caller = NOBODY) -> None:
        self.id = first_id
        """The first prompt's; the others' follow."""
        self.caller = caller
        self.cause: Cause | None = None
        """Why it was given up."""
        self.queued = {first_id + index: job.prompt_tokens for index, job in enumerate(jobs)}
        """Tokens of the prompts that are in the engine's queue, by id."""
        self.prompt_tokens = sum(self.queued.values())
        self._choices = jobs[0].choices
        self.boxes = [Mailbox() for job in jobs for _ in range(job.choices)]
        self.arrived = now
        """When it was accepted."""
        self.asked = caller.asked or now
        """When its client has asked: a model that had to be loaded first counts for whoever waits."""
        self.touched = now
        """When its client last got bytes."""
        self.ping_due = False
        """Set when that is so long ago that a ping shall be sent."""
        self.started = 0.0
        """When the first of its prompts left the engine's queue; 0 while all wait."""
        self.news = False
        """Something came that nobody has read."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ids(self) -> range:
        """Of all its prompts."""
        return range(self.id, self.id + len(self.boxes) // self._choices)

    def box(self, request_id: int, choice: int) -> Mailbox:
        """Of one choice of one prompt."""
        return self.boxes[(request_id - self.id) * self._choices + choice]

    def address(self, index: int) -> tuple[int, int]:
        """The engine's id and choice for `boxes[index]`."""
        prompt, choice = divmod(index, self._choices)
        return self.id + prompt, choice

    @property
    def ended(self) -> bool:
        """Whether every choice has."""
        return all(box.finish for box in self.boxes)

    @property
    def finish(self) -> FinishReason:
        """Of the whole request, once it has ended: the worst that became of a choice."""
        return next(reason for reason in WORST_FIRST if any(box.finish == reason for box in self.boxes))

    @property
    def aborted(self) -> bool:
        """Whether it was given up."""
        return any(box.finish == "abort" for box in self.boxes)

    @property
    def generated(self) -> int:
        """Tokens drawn for all choices."""
        return sum(box.generated for box in self.boxes)

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed for it: other choices share what the first one computes."""
        return sum(box.cached for box in self.boxes[:: self._choices])

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
        """Where the time went, over all choices: the engine's word, or ours for an answer that was ended here.

        Of several prompts `prefill` is over when the last of them begins to be answered.
        """
        size = self._choices
        prompts = [self._prompt_times(self.boxes[at : at + size]) for at in range(0, len(self.boxes), size)]
        if len(prompts) == 1:
            return prompts[0]
        queue = min(each.queue for each in prompts)
        return Timings(
            queue=queue,
            prefill=max(each.queue + each.prefill for each in prompts) - queue,
            decode=max(each.decode for each in prompts),
            **_counts(prompts),
        )

    def _prompt_times(self, boxes: Sequence[Mailbox]) -> Timings:
        times = [box.timings or self._seen(box) for box in boxes]
        if len(times) == 1:
            return times[0]
        return Timings(
            queue=min(each.queue for each in times),
            prefill=min(each.prefill for each in times),
            decode=max(each.decode for each in times),
            **_counts(times),
        )

    def _seen(self, box: Mailbox) -> Timings:
        first = box.first_token or box.last_token
        return Timings(self.started - self.arrived, first - self.started, box.last_token - first, 0)


def _counts(times: Sequence[Timings]) -> dict[str, Any]:
    """What adds up over choices and prompts."""
    names = ("preemptions", "drafted", "accepted", "verifications", "drafting")
    return {name: sum(getattr(each, name) for each in times) for name in names}
