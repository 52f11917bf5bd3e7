"""One choice of one request inside the engine: its tokens, how many are computed, and when it ends.

`pending` is all the scheduler needs to know. A prompt, a chunk of one, a preempted answer and a token just drawn are
the same thing: tokens that are not computed yet.
"""

from dataclasses import dataclass

import numpy as np

from forgelm.engine.plan import Draw, Span, Tokens
from forgelm.engine.prefix import NO_SLOT, Holder
from forgelm.ipc.messages import FinishReason, Generate, Timings


@dataclass(slots=True)
class Clock:
    """When things happened to a sequence, seconds on the engine's monotonic clock."""

    arrived: float
    started: float = 0.0
    """First scheduled."""
    first_token: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned and changed by the scheduler alone."""

    request: Generate
    order: int
    """Arrival order; the highest is the youngest."""
    limit: int
    """Tokens at which the answer ends with `length`: prompt and answer together."""
    clock: Clock
    tokens: Tokens
    """Shape (limit,), filled up to `length`."""
    length: int
    """Tokens known."""
    holder: Holder | None = None
    """Its place in memory, while it runs."""
    cached: int | None = None
    """Prompt tokens that needn't be computed when it first ran; None before."""
    reusable: int = 0
    """Tokens that memory was last seen to have, while it waits."""
    held: bool = False
    """It waits for another's prefill or for the disk."""
    leader: Holder | None = None
    """Whose prefill it waits for."""
    shares: int = 0
    """Tokens that it has in common with the leader."""
    asked_disk: bool = False
    """What the disk has of it was asked for, once."""
    preemptions: int = 0
    failures: int = 0
    """Steps that failed with this sequence in them since its last token."""

    @classmethod
    def from_request(cls, request: Generate, *, order: int, context: int, now: float) -> "Sequence":
        """A sequence that has nothing computed. The caller has checked that the prompt fits `context`."""
        prompt = np.frombuffer(request.prompt, np.int32)
        limit = min(len(prompt) + request.max_tokens, context)
        tokens = np.empty(limit, np.int32)
        tokens[: len(prompt)] = prompt
        return cls(request, order, limit, Clock(arrived=now), tokens, len(prompt))

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt) // 4

    @property
    def computed(self) -> int:
        """Tokens in its slot's memory."""
        return self.holder.computed if self.holder is not None else 0

    @property
    def slot(self) -> int:
        return self.holder.slot if self.holder is not None else NO_SLOT

    @property
    def known(self) -> Tokens:
        """All its tokens, shape (length,), a view."""
        return self.tokens[: self.length]

    @property
    def pending(self) -> int:
        """Tokens still to compute; 1 for a sequence that decodes."""
        return self.length - self.computed

    @property
    def to_compute(self) -> int:
        """Tokens that it is likely to compute before its next one."""
        return self.pending if self.holder is not None else self.length - self.reusable

    def chunk_end(self, most: int) -> int:
        """Where a chunk of at most `most` tokens ends: at the next mark, if one comes first."""
        end = min(self.computed + most, self.length)
        mark = self.holder.next_mark() if self.holder is not None else 0
        return min(end, mark) if mark else end

    def span(self, end: int) -> Span:
        """The rows from what is computed to `end`; the last one's draw if all is computed then."""
        draw = self.draw() if end == self.length else None
        return Span(self.slot, self.tokens[self.computed : end], self.computed, draw)

    def draw(self) -> Draw:
        """How to pick the next token."""
        prompt = self.prompt_length
        return Draw(self.request.sampling, 0, self.length - prompt, self.tokens[prompt : self.length])

    def append(self, token: int) -> FinishReason | None:
        """Add a drawn token; says whether the answer ends with it."""
        self.tokens[self.length] = token
        self.length += 1
        if token in self.request.stop_tokens:
            return "stop"
        return "length" if self.length >= self.limit else None

    def timings(self, now: float) -> Timings:
        """Where the time went, for the last delta."""
        clock = self.clock
        started = clock.started or now
        first = clock.first_token or now
        return Timings(started - clock.arrived, first - started, now - first, self.preemptions)
