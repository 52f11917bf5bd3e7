"""Who computes what in the next step. Takes data, returns data; touches no model and no clock.

A sequence wants `pending` tokens computed; there are no phases. Sequences one token behind are decoding and go first;
the rest of the step's time goes to those further behind. Memory is one pool of cells: requests are admitted by need,
and when the pool is full the youngest sequence gives its cells back and is computed again later.

Every request ends exactly once, in `_finish` or, while it still waits, in `abort`.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import Decode, DecodeResult, Outcome, Plan, Span, Trim
from forgelm.engine.sequence import NO_SLOT, Sequence
from forgelm.ipc.messages import Delta, FinishReason, Generate, Stats
from forgelm.llama.status import DecodeStatus

MAX_FAILURES = 3
"""Failed steps without a token in between after which a sequence ends with an error."""
MAX_FAILED_STEPS = 6
"""Failed steps in a row after which the backend is taken to be broken."""
HEADROOM = 16
"""A request is admitted beside others only if 1/16 of the cells stay free for them to grow into."""


class BackendBroken(Exception):
    """Step after step failed; only a new process helps."""


class Scheduler:
    """The owner of all sequences. One caller: the engine's loop."""

    def __init__(
        self,
        *,
        cells: int,
        slots: int,
        pacer: Pacer,
        context: int = 0,
        split_batches: bool = False,
        recurrent: bool = False,
    ) -> None:
        """`cells` is the KV pool in tokens, `context` the most one request may hold (0: all of it).

        `split_batches` keeps decode and prefill rows in decodes of their own; `recurrent` says that a failed decode
        damages sequences outside it too.
        """
        self.cells = cells
        self._context = context or cells
        self._pacer = pacer
        self._split = split_batches
        self._recurrent = recurrent
        self._free_slots = list(reversed(range(slots)))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[int, Sequence] = {}
        self._trims: list[Trim] = []
        self._endings: list[Delta] = []
        self._in_flight: list[tuple[Sequence, ...]] = []
        self._started: list[int] = []
        self._arrivals = 0
        self._preemptions = 0
        self._failed_steps = 0
        self._shortest_first = False

    # --- requests come and go ---

    def add(self, request: Generate, now: float) -> None:
        """Queue a request. One that can't be served ends at once with `error`."""
        problem = self._problem(request)
        if problem:
            self._endings.append(Delta(request.id, finish="error", error=problem))
            return
        sequence = Sequence.from_request(request, order=self._arrivals, context=self._context, now=now)
        self._arrivals += 1
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: int, now: float) -> None:
        """End a request now, wherever it is. Unknown and ended ids are ignored: an abort may cross an ending."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return
        if sequence.slot == NO_SLOT:
            self._waiting.remove(sequence)
        self._endings.append(self._finish(sequence, "abort", now))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting or self._trims or self._endings)

    @property
    def cells_used(self) -> int:
        """KV cells held by running sequences."""
        return sum(sequence.computed for sequence in self._running)

    # --- plan ---

    def plan(self, now: float) -> Plan:
        """The next step. Call `apply` with its outcome before planning again."""
        decoders = self._fit_decoders()
        prefill = self._choose_prefill(len(decoders), now)
        groups = self._group([(s, s.length) for s in decoders], prefill)
        self._in_flight = [tuple(sequence for sequence, _ in group) for group in groups]
        decodes = tuple(Decode(tuple(_span(sequence, end) for sequence, end in group)) for group in groups)
        rows = sum(end - sequence.computed for sequence, end in prefill)
        trims, self._trims = self._trims, []
        return Plan((*trims, *decodes), self._pacer.predict(len(decoders), rows), len(decoders), rows)

    def _fit_decoders(self) -> list[Sequence]:
        """Sequences that decode in this step, after making room for one token each."""
        while True:
            decoders = [sequence for sequence in self._running if sequence.pending == 1]
            if self.cells_used + len(decoders) <= self.cells:
                return decoders
            self._preempt(self._youngest())

    def _choose_prefill(self, decoders: int, now: float) -> list[tuple[Sequence, int]]:
        """(sequence, chunk end) pairs within the step's time and cells, admitting from the queue."""
        budget = self._pacer.prefill_rows(decoders)
        room = self.cells - self.cells_used - decoders
        chosen: list[tuple[Sequence, int]] = []
        for sequence in self._prefill_order():
            if budget <= 0:
                break
            # One that can't be admitted holds up nobody who runs: they are what it waits for.
            if sequence.slot == NO_SLOT and not self._admit(sequence, now):
                continue
            end = sequence.chunk_end(min(budget, room))
            if end > sequence.computed:
                chosen.append((sequence, end))
                budget -= end - sequence.computed
                room -= end - sequence.computed
        # Never empty without decoders: lengths grow by decoding alone, so what was admitted together still fits.
        return chosen

    def _prefill_order(self) -> list[Sequence]:
        """Sequences with a prompt to compute: by age and by length in turns.

        By age alone a short question would wait for a long document to be read; by length alone a long document could
        wait for ever.
        """
        behind = [sequence for sequence in self._running if sequence.pending > 1]
        behind += islice(self._waiting, len(self._free_slots))
        self._shortest_first = not self._shortest_first
        if self._shortest_first:
            return sorted(behind, key=lambda sequence: sequence.pending)
        return sorted(behind, key=lambda sequence: sequence.order)

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Give a waiting sequence a slot if its tokens fit beside everything that runs."""
        if not self._fits(sequence):
            return False
        self._waiting.remove(sequence)
        sequence.slot = self._free_slots.pop()
        self._running.append(sequence)
        if not sequence.clock.started:
            sequence.clock.started = now
            self._started.append(sequence.request.id)
        return True

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there are cells for one more, and for the head of the queue too if that is overtaken.

        Without that, a stream of short requests would keep a long one waiting for ever.
        """
        head = self._waiting[0]
        if sequence is head and not self._running:
            return True
        # After a failure suspects are tried one by one, so that a request that breaks its steps takes nobody along.
        if self._failed_steps or any(running.failures for running in self._running):
            return False
        claimed = sum(running.length for running in self._running)
        if sequence is not head:
            claimed += head.length
        return claimed + sequence.length + self.cells // HEADROOM <= self.cells

    def _group(
        self, decoders: list[tuple[Sequence, int]], prefill: list[tuple[Sequence, int]]
    ) -> list[list[tuple[Sequence, int]]]:
        """The step's decodes: one, or on models that split batches anyway decode rows before prefill rows."""
        groups = [decoders, prefill] if self._split else [decoders + prefill]
        return [group for group in groups if group]

    # --- apply ---

    def apply(self, plan: Plan, outcome: Outcome, now: float) -> list[Delta]:
        """Take in what the plan's decodes did; returns what every request gets from this step.

        Raises `BackendBroken` when steps keep failing.
        """
        deltas, self._endings = self._endings, []
        decodes = zip(plan.decodes, self._in_flight, outcome.results, strict=False)
        for decode, sequences, result in decodes:
            if result.status is DecodeStatus.OK:
                deltas += self._advance(decode, sequences, result, now)
            else:
                deltas += self._recover(sequences, result.status, now)
        self._in_flight = []
        if all(result.status is DecodeStatus.OK for result in outcome.results):
            # A step without decodes says nothing of the backend's health.
            self._failed_steps = 0 if outcome.results else self._failed_steps
            self._pacer.observe(plan.decode_rows, plan.prefill_rows, outcome.seconds)
        elif self._failed_steps >= MAX_FAILED_STEPS:
            raise BackendBroken(f"{self._failed_steps} steps in a row failed")
        return deltas

    def _advance(
        self, decode: Decode, sequences: tuple[Sequence, ...], result: DecodeResult, now: float
    ) -> Iterable[Delta]:
        for span, sequence, token in zip(decode.spans, sequences, result.tokens, strict=True):
            sequence.computed += len(span.tokens)
            if token is None:
                continue
            # Not before: a prompt whose third chunk always fails would be read from the start for ever.
            sequence.failures = 0
            if not sequence.clock.first_token:
                sequence.clock.first_token = now
            reason = sequence.append(token)
            if reason is None:
                yield Delta(sequence.request.id, (token,))
            else:
                yield self._finish(sequence, reason, now, (token,))

    def _recover(self, sequences: tuple[Sequence, ...], status: DecodeStatus, now: float) -> Iterable[Delta]:
        """A decode failed: decide by its status who gives way, who starts over and who ends."""
        self._failed_steps += 1
        if status is DecodeStatus.INVALID:
            yield from [self._finish(s, "error", now, error="the engine built an invalid batch") for s in sequences]
            return
        if status is DecodeStatus.NO_ROOM and len(self._running) > 1:
            self._preempt(self._youngest())
            return
        # A tainted batch takes down everyone in it, as does no room for a sequence that has all of it to itself. On
        # recurrent models it moves the states of all others too, who start over unblamed.
        tainted = self._running if status.taints and self._recurrent else sequences
        for sequence in sorted(tainted, key=lambda victim: -victim.order):
            sequence.failures += sequence in sequences
            if sequence.failures >= MAX_FAILURES:
                yield self._finish(sequence, "error", now, error=f"computing this request failed: {status.value}")
            else:
                self._preempt(sequence)

    # --- slots ---

    def _youngest(self) -> Sequence:
        return max(self._running, key=lambda sequence: sequence.order)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, keeping tokens but no memory."""
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(sequence)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, now: float, tokens: tuple[int, ...] = (), error: str = ""
    ) -> Delta:
        if sequence.slot != NO_SLOT:
            self._release(sequence)
        del self._by_id[sequence.request.id]
        return Delta(sequence.request.id, tokens, reason, timings=sequence.timings(now), error=error)

    def _release(self, sequence: Sequence) -> None:
        """The only place where a slot is given back; its memory is wiped before the next decode."""
        self._trims.append(Trim(sequence.slot))
        self._free_slots.append(sequence.slot)
        self._running.remove(sequence)
        sequence.slot = NO_SLOT

    # --- reporting ---

    def take_started(self) -> tuple[int, ...]:
        """Requests that left the queue since the last call."""
        started, self._started = tuple(self._started), []
        return started

    def stats(self, plan: Plan, outcome: Outcome) -> Stats:
        """The state after a step."""
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            cells_used=self.cells_used,
            seconds=outcome.seconds,
            prefill_tokens=plan.prefill_rows,
            decode_tokens=plan.decode_rows,
            preemptions=self._preemptions,
        )

    def _problem(self, request: Generate) -> str:
        """Why the engine can't serve this request at all; "" if it can."""
        length, rest = divmod(len(request.prompt), 4)
        if rest or request.max_tokens < 1:
            return "a prompt must be whole int32 token ids, and max_tokens at least 1"
        if not 0 < length < self._context:
            return f"a prompt of {length} tokens doesn't fit a context of {self._context}"
        if request.id in self._by_id:
            return f"request id {request.id} is in use"
        if request.constraint is not None or request.logprobs >= 0 or request.choices != 1:
            return "constraints, logprobs and several choices are not implemented by this engine"
        return ""


def _span(sequence: Sequence, end: int) -> Span:
    complete = end == sequence.length
    return Span(
        sequence.slot,
        sequence.tokens[sequence.computed : end],
        sequence.computed,
        sequence.draw() if complete else None,
    )
