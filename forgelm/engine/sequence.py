"""One choice of one request inside the engine: its tokens, how many are computed, and when it ends.

`pending` is all the scheduler needs to know. A prompt, a chunk of one, a preempted answer, a token just drawn and those
that a grammar forces after it are the same thing: tokens that are not computed yet.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from forgelm.engine.ngram import NGrams
from forgelm.engine.plan import NO_TOKENS, UNDECIDED, Draw, Drawn, Matcher, MatchFailed, Span, Tokens
from forgelm.engine.prefix import NO_SLOT, Holder
from forgelm.engine.sampling import NOT_NUMBERS
from forgelm.engine.speculation import Track
from forgelm.ipc.messages import Budget, FinishReason, Generate, Timings, TokenLogprobs


@dataclass(slots=True)
class Clock:
    """When things happened to a sequence, seconds on the engine's monotonic clock."""

    arrived: float
    started: float = 0.0
    """First scheduled."""
    first_token: float = 0.0


class Taken(NamedTuple):
    """What a step has given a sequence."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: FinishReason | None
    """Why it ends now; None: it goes on."""
    error: str


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned and changed by the scheduler alone."""

    request: Generate
    choice: int
    order: int
    """Arrival order; the highest is the youngest."""
    limit: int
    """Tokens at which the answer ends with `length`: prompt and answer together."""
    clock: Clock
    tokens: Tokens
    """Shape (limit,), filled up to `length`."""
    length: int
    """Tokens known."""
    matcher: Matcher | None = None
    """The grammar that its answer follows."""
    mu: float = 0.0
    """Mirostat's state."""
    thinking: bool = False
    """It may still be told to end its thinking."""
    fixed: deque[int] = field(default_factory=deque)
    """Tokens that must follow one by one, because their log-probabilities are wanted."""
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
    whole_rows: bool = False
    """Its tokens can't be told from the highest logits alone."""
    failures: int = 0
    """Steps that failed with this sequence in them since its last token."""
    track: Track | None = None
    """How its guesses have done; None where nothing is guessed."""
    ngrams: NGrams | None = None
    """Where its words came before; made when first asked for."""

    @classmethod
    def from_request(
        cls,
        request: Generate,
        *,
        order: int,
        context: int,
        now: float,
        choice: int = 0,
        matcher: Matcher | None = None,
    ) -> "Sequence":
        """A sequence that has nothing computed. The caller has checked that the prompt fits `context`."""
        prompt = np.frombuffer(request.prompt, np.int32)
        limit = min(len(prompt) + request.max_tokens, context)
        tokens = np.empty(limit, np.int32)
        tokens[: len(prompt)] = prompt
        return cls(
            request,
            choice,
            order,
            limit,
            Clock(arrived=now),
            tokens,
            len(prompt),
            matcher,
            # As the paper starts it: expecting twice the surprise that is aimed at.
            mu=2 * request.sampling.mirostat_tau,
            thinking=request.budget is not None,
        )

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
    def boundaries(self) -> tuple[int, ...]:
        """Where others may have the same beginning: its own request's other choices have all of the prompt."""
        boundaries = self.request.boundaries
        return (*boundaries, self.prompt_length - 1) if self.request.choices > 1 else boundaries

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.length - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens still to compute."""
        return self.length - self.computed

    def decodes(self, most: int) -> bool:
        """Whether all but its newest token is computed, or all but `most` that were forced."""
        pending = self.length - self.computed
        return pending == 1 or pending <= min(most, self.generated)

    @property
    def to_compute(self) -> int:
        """Tokens that it is likely to compute before its next one."""
        return self.pending if self.holder is not None else self.length - self.reusable

    def chunk_end(self, most: int) -> int:
        """Where a chunk of at most `most` tokens ends: at the next mark, if one comes first."""
        end = min(self.computed + most, self.length)
        mark = self.holder.next_mark() if self.holder is not None else 0
        return min(end, mark) if mark else end

    @property
    def most_guesses(self) -> int:
        """How many tokens may be guessed now: none that would go beyond what ends or interrupts the answer."""
        if self.pending != 1 or not self.generated or self.fixed:
            return 0
        most = self.limit - self.length - 1
        if self.thinking and self.request.budget is not None:
            most = min(most, self.request.budget.tokens - self.generated - 1)
        return max(most, 0)

    def sift(self, guesses: Tokens) -> Tokens:
        """The beginning of `guesses` that could be right: no end of the answer, nothing that its grammar forbids."""
        tokens = guesses.tolist()
        for at, token in enumerate(tokens):
            if token in self.request.stop_tokens:
                tokens = tokens[:at]
                break
        if self.matcher is not None and tokens:
            tokens = tokens[: self.matcher.accepts(tokens)]
        return guesses[: len(tokens)]

    def span(self, end: int, guesses: Tokens = NO_TOKENS, *, follows: bool = False) -> Span:
        """The rows from what is computed to `end`, and `guesses` after all that is known; with the draw if all is
        computed then."""
        draw = self.draw() if end == self.length else None
        ahead = NO_TOKENS
        if len(guesses):
            self.tokens[self.length : self.length + len(guesses)] = guesses
            ahead = self.tokens[: self.length + len(guesses)]
        return Span(self.slot, self.tokens[self.computed : end], self.computed, draw, guesses, ahead, follows)

    def draw(self) -> Draw:
        """How to pick the next token."""
        request, index = self.request, self.generated
        return Draw(
            request.sampling,
            self.choice,
            index,
            self.known,
            request.stop_tokens if index < request.min_tokens else (),
            request.min_tokens,
            self.fixed[0] if self.fixed else -1,
            request.logprobs,
            self.matcher,
            self.mu,
        )

    def take(self, drawn: Drawn) -> FinishReason | None:
        """Add a drawn token, and those that must follow it; says whether the answer ends with them.

        Raises `MatchFailed` when the answer's grammar can't be followed.
        """
        self.mu = drawn.mu
        if self.fixed:
            self.fixed.popleft()
        reason = self._append(drawn.token)
        while reason is None and not self.fixed:
            forced = self._forced()
            if not forced:
                break
            if self.request.logprobs >= 0:
                self.fixed.extend(forced)
                break
            for token in forced:
                reason = reason or self._append(token)
        return reason

    def take_all(self, drawn: Iterable[Drawn]) -> "Taken":
        """Add the tokens that a step has drawn one after the other, up to one that ends the answer or isn't one."""
        known = end = self.length
        reason: FinishReason | None = None
        error, logprobs = "", []
        for each in drawn:
            if each.token == UNDECIDED:
                break
            if each.problem:
                reason, error = "error" if each.problem == NOT_NUMBERS else "refused", each.problem
                break
            try:
                reason = self.take(each)
            except MatchFailed as failure:
                reason, error = "refused", str(failure)
                break
            end = self.length
            if each.logprobs is not None:
                logprobs.append(each.logprobs)
            if reason is not None:
                break
        return Taken(tuple(self.tokens[known:end].tolist()), tuple(logprobs), reason, error)

    def _append(self, token: int) -> FinishReason | None:
        self.tokens[self.length] = token
        self.length += 1
        if self.matcher is not None:
            self.matcher.advance(token)
        if self.thinking and self.request.budget is not None:
            self.thinking = self._still_thinks(self.request.budget, token)
        if token in self.request.stop_tokens and self.generated > self.request.min_tokens:
            return "stop"
        if self.matcher is not None and self.matcher.finished:
            return "stop"
        return "length" if self.length >= self.limit else None

    def _still_thinks(self, budget: Budget, token: int) -> bool:
        begun = self.generated > 1 or not budget.begins or token in budget.begins
        return begun and token not in budget.ends

    def _forced(self) -> tuple[int, ...]:
        """What must follow now: the end of a thought that takes too long, or what a grammar leaves no choice about."""
        budget = self.request.budget
        if self.thinking and budget is not None and self.generated >= budget.tokens:
            self.thinking = False
            return budget.closing
        # Where log-probabilities are wanted the mask lets through the same tokens one by one.
        if self.matcher is None or self.request.logprobs >= 0:
            return ()
        return self.matcher.forced()

    def timings(self, now: float) -> Timings:
        """Where the time went, for the last delta."""
        clock = self.clock
        started = clock.started or now
        first = clock.first_token or now
        times = Timings(started - clock.arrived, first - started, now - first, self.preemptions)
        if (track := self.track) is None:
            return times
        return msgspec.structs.replace(
            times,
            drafted=track.drafted,
            accepted=track.accepted,
            verifications=track.verifications,
            drafting=track.drafting,
        )
