"""One choice of one request inside the engine: its tokens, how many are computed, and when it ends.

`pending` is all the scheduler needs to know. A prompt, a chunk of one, a preempted answer and a token just drawn are
the same thing: tokens that are not computed yet.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from forgelm.engine.plan import Draw, Tokens
from forgelm.ipc.messages import FinishReason, Generate, Timings

NO_SLOT = -1


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
    computed: int = 0
    """Tokens in the slot's memory."""
    slot: int = NO_SLOT
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
    def pending(self) -> int:
        """Tokens still to compute; 1 for a sequence that decodes."""
        return self.length - self.computed

    def chunk_end(self, most: int) -> int:
        """Where a chunk of at most `most` tokens ends: at the next boundary, if one comes first."""
        end = min(self.computed + most, self.length)
        boundaries = self.request.boundaries
        at = bisect_right(boundaries, self.computed)
        return min(end, boundaries[at]) if at < len(boundaries) else end

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
