"""Who computes what in the next step. Takes data, returns data; touches no model and no clock.

A sequence wants `pending` tokens computed; there are no phases. Sequences one token behind are decoding and go first;
the rest of the step's time goes to those further behind. Memory is one pool of cells: requests are admitted by need,
start from what `Memory` has of their prefix, and wait for each other where they share one that is being computed. When
the pool is full finished requests' cells go first; then the youngest sequence steps back and goes on later.

A request's choices are sequences of their own: they share what was computed of the prompt as any requests do. Each
ends exactly once, in `_finish`.
"""

from collections.abc import Callable, Iterable

from forgelm.config import MIN_CHUNK
from forgelm.engine.guessing import Guessing, of_equal_rows
from forgelm.engine.memory import Memory
from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import (
    CANDIDATES,
    NO_DRAFTS,
    NO_TOKENS,
    UNDECIDED,
    Ask,
    Decode,
    DecodeResult,
    Drafts,
    Drawn,
    Matcher,
    Outcome,
    Plan,
    Tokens,
)
from forgelm.engine.queue import Queue
from forgelm.engine.sampling import fits_candidates
from forgelm.engine.sequence import Sequence
from forgelm.ipc.messages import Admission, Constraint, Delta, FinishReason, Generate, Stats, TokenLogprobs
from forgelm.llama.status import DecodeStatus

MAX_FAILURES = 3
"""Failed steps without a token in between after which a sequence ends with an error."""
MAX_FORCED = 8
"""Tokens of a sequence up to which those forced by a grammar are computed beside decoders'; more are like a prompt."""
MAX_FAILED_STEPS = 6
"""Failed steps in a row after which the backend is taken to be broken."""


class BackendBroken(Exception):
    """Step after step failed; only a new process helps."""


class Scheduler:
    """The owner of all sequences. One caller: the engine's loop."""

    def __init__(
        self,
        memory: Memory,
        pacer: Pacer,
        *,
        parallel: int,
        context: int = 0,
        split_batches: bool = False,
        open_grammar: Callable[[Constraint], Matcher] | None = None,
        guessing: Guessing | None = None,
    ) -> None:
        """`parallel` sequences run at once; `context` is the most one request may hold (0: all cells).

        `split_batches` keeps decode and prefill rows in decodes of their own. `open_grammar` begins to compile one;
        without it constrained requests are refused. `guessing` makes guesses; without it nobody does.
        """
        self.memory = memory
        self.cells = memory.shape.cells
        self._parallel = parallel
        self._context = context or self.cells
        self._pacer = pacer
        self._max_forced = max(1, min(MAX_FORCED, pacer.most_rows // parallel))
        self._split = split_batches
        self._open_grammar = open_grammar
        self._guessing = guessing or Guessing(None)
        # On recurrent models a failed decode damages sequences outside it too.
        self._recurrent = memory.shape.recurrent
        self._queue = Queue(memory)
        self._running: list[Sequence] = []
        self._by_id: dict[int, list[Sequence]] = {}
        """The choices of each request that have not ended."""
        self._endings: list[Delta] = []
        self._in_flight: list[tuple[Sequence, ...]] = []
        """Whose spans the planned decodes have."""
        self._deciding: list[Sequence] = []
        """Those of them that decode."""
        self._unstarted: set[int] = set()
        """Requests of which no choice has run yet."""
        self._started: list[int] = []
        self._admissions: list[Admission] = []
        """Of sequences that began to run for the first time and weren't reported yet."""
        self._arrivals = 0
        self._preemptions = 0
        self._failed_steps = 0
        self._shortest_first = False

    # --- requests come and go ---

    def add(self, request: Generate, now: float) -> None:
        """Queue a request. One that can't be served ends at once with `error`."""
        problem = self._problem(request)
        if problem:
            choices = range(max(1, request.choices))
            self._endings += [Delta(request.id, finish="error", error=problem, choice=choice) for choice in choices]
            return
        self._by_id[request.id] = sequences = [self._sequence(request, n, now) for n in range(request.choices)]
        self._unstarted.add(request.id)
        for sequence in sequences:
            self._queue.append(sequence)

    def _sequence(self, request: Generate, choice: int, now: float) -> Sequence:
        matcher = None
        if request.constraint is not None:
            assert self._open_grammar is not None
            matcher = self._open_grammar(request.constraint)
        self._arrivals += 1
        sequence = Sequence.from_request(
            request, order=self._arrivals, context=self._context, now=now, choice=choice, matcher=matcher
        )
        sequence.track = self._guessing.begin(request.drafting)
        sequence.whole_rows = not fits_candidates(request.sampling, request.logprobs, matcher, CANDIDATES)
        return sequence

    def abort(self, request_id: int, now: float, choice: int = -1) -> None:
        """End a request now, or one choice of it, wherever it is.

        Unknown and ended ones are ignored: an abort may cross an ending.
        """
        for sequence in tuple(self._by_id.get(request_id, ())):
            if choice in (-1, sequence.choice):
                if sequence.holder is None:
                    self._queue.remove(sequence)
                self._endings.append(self._finish(sequence, "abort", now))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._queue or self._endings or self.memory.has_operations)

    def archive(self, now: float, *, at_once: bool = False) -> bool:
        """Let the next step write a finished sequence to disk; False when there is none that is left alone."""
        return self.memory.archive_next(now, at_once=at_once)

    # --- plan ---

    def ask(self, now: float) -> tuple[Ask, ...]:
        """Decide who shall guess in the next step, and what a model that drafts is to be asked for it. Then `plan`."""
        return self._guessing.ask(self._fit_decoders(now))

    def plan(self, now: float, drafts: Drafts = NO_DRAFTS) -> Plan:
        """The next step, with the answers to what `ask` asked. Call `apply` with its outcome before planning again."""
        memory = self.memory
        decoders = self._fit_decoders(now)
        prefill = self._choose_prefill(decoders, now, self._guessing.wanted(drafts))
        rows = sum(end - sequence.computed for sequence, end in prefill)
        decoding = sum(sequence.pending for sequence in decoders)
        memory.make_room(decoding + rows, now)
        memory.bound(self._pacer.cached_cells(len(decoders)), now)
        guesses = self._guessing.take(decoders, drafts, self._guess_room(decoding, rows))
        guessed = sum(map(len, guesses.values()))
        decodes = self._decodes(decoders, prefill, guesses)
        idle = not decodes and memory.waits_for_disk
        operations = (*memory.take_operations(), *decodes)
        # A guessed row costs what a prompt's does.
        predicted = self._pacer.predict(decoding, rows + guessed)
        return Plan(operations, predicted, decoding + guessed, rows, idle)

    def _guess_room(self, decoding: int, prefill: int) -> int:
        """Rows that may be guessed: no cell is taken from anybody for them, and a decode holds only so many."""
        ledger = self.memory.ledger
        free = ledger.cells - ledger.used - decoding - prefill
        beside = decoding if self._split else decoding + prefill
        return min(free, self._pacer.most_rows - beside)

    def _fit_decoders(self, now: float) -> list[Sequence]:
        """Sequences that decode in this step, after making room for their tokens."""
        while True:
            decoders = [sequence for sequence in self._running if sequence.decodes(self._max_forced)]
            if sum(sequence.pending for sequence in decoders) <= self.memory.room:
                return decoders
            self._preempt(self._youngest(), now)

    def _choose_prefill(self, decoders: list[Sequence], now: float, guesses: int) -> list[tuple[Sequence, int]]:
        """(sequence, chunk end) pairs within the step's time and cells, admitting from the queue.

        Where all rows are of one decode, it is left room for `guesses`.
        """
        taken = sum(sequence.pending for sequence in decoders)
        free = self._pacer.most_rows - taken
        if not self._split:
            free -= max(0, min(guesses, free - MIN_CHUNK))
        budget = min(self._pacer.prefill_rows(taken), free)
        chosen: list[tuple[Sequence, int]] = []
        for sequence in self._prefill_order():
            if budget <= 0:
                break
            # One that can't be admitted holds up nobody who runs: they are what it waits for.
            if sequence.holder is None and not self._admit(sequence, now):
                continue
            end = sequence.chunk_end(min(budget, self.memory.room - taken))
            rows = end - sequence.computed
            if rows > 0:
                chosen.append((sequence, end))
                budget -= rows
                taken += rows
        # Without decoders never empty but for waiting: lengths grow by decoding alone, so those admitted together fit.
        return chosen

    def _prefill_order(self) -> list[Sequence]:
        """Sequences with a prompt to compute: by age and by length in turns.

        By age alone a short question would wait for a long document to be read; by length alone a long document could
        wait for ever.
        """
        behind = [sequence for sequence in self._running if not sequence.decodes(self._max_forced)]
        behind += self._queue.candidates(self._parallel - len(self._running))
        self._shortest_first = not self._shortest_first
        if self._shortest_first:
            return sorted(behind, key=lambda sequence: sequence.to_compute)
        return sorted(behind, key=lambda sequence: sequence.order)

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Let a waiting sequence run, if it may."""
        if len(self._running) >= self._parallel:
            return False
        # After a failure suspects are tried one by one, so that a request that breaks its steps takes nobody along.
        suspicious = bool(self._failed_steps) or any(running.failures for running in self._running)
        route = self._queue.admit(sequence, self._running, alone=suspicious)
        if route is None:
            return False
        self._running.append(sequence)
        # Before it is opened: taking the prefix over changes where its parts lie.
        if sequence.cached is None:
            tier = route.tier(from_disk=sequence.asked_disk)
            self._admissions.append(Admission(sequence.prompt_length, route.depth, tier))
        sequence.holder = self.memory.open(
            sequence.known, sequence.boundaries, route, now, whole_rows=sequence.whole_rows
        )
        if sequence.cached is None:
            sequence.cached = route.depth
            sequence.clock.started = now
            if sequence.request.id in self._unstarted:
                self._unstarted.remove(sequence.request.id)
                self._started.append(sequence.request.id)
        return True

    def _decodes(
        self, decoders: list[Sequence], prefill: list[tuple[Sequence, int]], guesses: dict[Sequence, Tokens]
    ) -> tuple[Decode, ...]:
        """The step's decodes: one, or on models that split batches anyway decode rows before prefill rows."""
        follows, running = self._guessing.follows, len(self._running)
        deciding = [(s, s.span(s.length, guesses.get(s, NO_TOKENS), follows=follows(s, running))) for s in decoders]
        reading = [(s, s.span(end, follows=follows(s, running))) for s, end in prefill]
        if self._split:
            groups = [*(of_equal_rows(deciding) if self._recurrent else [deciding]), reading]
        else:
            groups = [deciding + reading]
        groups = [group for group in groups if group]
        self._deciding = decoders
        self._in_flight = [tuple(sequence for sequence, _ in group) for group in groups]
        return tuple(Decode(tuple(span for _, span in group)) for group in groups)

    # --- apply ---

    def apply(self, plan: Plan, outcome: Outcome, now: float) -> list[Delta]:
        """Take in what the plan's decodes did; returns what every request gets from this step.

        Raises `BackendBroken` when steps keep failing.
        """
        deltas, self._endings = self._endings, []
        self.memory.take_in(outcome.moves, self._pacer.row_seconds, now)
        if outcome.moves.lost:
            self._lose_device(now)
        healthy = all(result.status is DecodeStatus.OK for result in outcome.results)
        if healthy and not outcome.moves.lost:
            self._observe(plan, outcome)
        decodes = zip(plan.decodes, self._in_flight, outcome.results, strict=False)
        for decode, sequences, result in decodes:
            if result.status is DecodeStatus.OK:
                deltas += self._advance(decode, sequences, result, now)
            else:
                deltas += self._recover(sequences, result.status, now)
        self._in_flight = []
        if healthy:
            # A step without decodes says nothing of the backend's health.
            self._failed_steps = 0 if outcome.results else self._failed_steps
        elif self._failed_steps >= MAX_FAILED_STEPS:
            raise BackendBroken(f"{self._failed_steps} steps in a row failed")
        return deltas

    def _observe(self, plan: Plan, outcome: Outcome) -> None:
        """Learn from a step what steps cost, and what became of guesses."""
        deciding, prefill = set(self._deciding), plan.prefill_rows
        pairs = list(zip(self._in_flight, outcome.results, strict=True))
        mine = [(group, result) for group, result in pairs if not deciding.isdisjoint(group)]
        alone = not prefill or self._split
        self._guessing.observe(self._deciding, mine, rows=plan.decode_rows, alone=alone)
        guessed = plan.decode_rows - sum(sequence.pending for sequence in self._deciding)
        seconds = outcome.seconds - outcome.moves.seconds
        if not guessed:
            self._pacer.observe(plan.decode_rows, prefill, seconds, self.memory.ledger.used)
        elif prefill and alone:
            # What the decoders would have taken without guesses isn't known; what the prompts took is.
            read = [result for _, result in pairs if all(result is not other for _, other in mine)]
            self._pacer.observe(0, prefill, sum(result.seconds + result.following for result in read))

    def _advance(
        self, decode: Decode, sequences: tuple[Sequence, ...], result: DecodeResult, now: float
    ) -> Iterable[Delta]:
        for span, sequence, kept in zip(decode.spans, sequences, result.kept, strict=True):
            assert sequence.holder is not None
            self.memory.advance(sequence.holder, kept, now, rolled_back=kept < span.rows)
        for sequence, drawn in zip(sequences, result.drawn, strict=True):
            if not drawn:
                continue
            # Not before: a prompt whose third chunk always fails would be read from the start for ever.
            sequence.failures = 0
            delta = self._take(sequence, drawn, now)
            if delta is not None:
                yield delta

    def _take(self, sequence: Sequence, drawn: tuple[Drawn, ...], now: float) -> Delta | None:
        """Give a sequence its tokens; what its request gets from that, None for nothing."""
        taken = sequence.take_all(drawn)
        if drawn[-1].token == UNDECIDED and taken.reason is None:
            sequence.whole_rows = True
            self._preempt(sequence, now)
        if taken.tokens and not sequence.clock.first_token:
            sequence.clock.first_token = now
        if taken.reason is not None:
            return self._finish(sequence, taken.reason, now, taken.tokens, logprobs=taken.logprobs, error=taken.error)
        if not taken.tokens:
            return None
        return Delta(
            sequence.request.id,
            taken.tokens,
            choice=sequence.choice,
            logprobs=taken.logprobs,
            cached=sequence.cached or 0,
        )

    def _recover(self, sequences: tuple[Sequence, ...], status: DecodeStatus, now: float) -> Iterable[Delta]:
        """A decode failed: decide by its status who gives way, who starts over and who ends."""
        self._failed_steps += 1
        if status is DecodeStatus.INVALID:
            yield from [self._finish(s, "error", now, error="the engine built an invalid batch") for s in sequences]
            return
        if status is DecodeStatus.NO_ROOM and self.memory.usage.cached:
            self.memory.bound(0, now)
            return
        if status is DecodeStatus.NO_ROOM and len(self._running) > 1:
            self._preempt(self._youngest(), now)
            return
        if status.taints and self._recurrent:
            self.memory.lose_device()
        # A tainted batch takes down everyone in it, as does no room for a sequence that has all of it to itself. On
        # recurrent models it moves the states of all others too, who start over unblamed.
        tainted = self._running if status.taints and self._recurrent else sequences
        for sequence in sorted(tainted, key=lambda victim: -victim.order):
            sequence.failures += sequence in sequences
            if sequence.failures >= MAX_FAILURES:
                yield self._finish(sequence, "error", now, error=f"computing this request failed: {status.value}")
            else:
                self._preempt(sequence, now, keep=False)

    def _lose_device(self, now: float) -> None:
        """Loading a saved state failed, and what came after it was never done: everybody starts over."""
        self.memory.lose_device()
        self.memory.lose_saved()
        for sequence in sorted(self._running, key=lambda victim: -victim.order):
            self._preempt(sequence, now, keep=False)

    # --- slots ---

    def _youngest(self) -> Sequence:
        return max(self._running, key=lambda sequence: sequence.order)

    def _preempt(self, sequence: Sequence, now: float, *, keep: bool = True) -> None:
        """Back to the head of the queue. `keep`: its memory can be trusted, so it may survive as a cached prefix."""
        self._release(sequence, now, keep=keep)
        sequence.preemptions += 1
        self._preemptions += 1
        self._queue.put_back(sequence)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        tokens: tuple[int, ...] = (),
        *,
        logprobs: tuple[TokenLogprobs, ...] = (),
        error: str = "",
    ) -> Delta:
        request = sequence.request.id
        if sequence.holder is not None:
            self._release(sequence, now, keep=reason != "error")
        self._guessing.end(sequence)
        self._by_id[request].remove(sequence)
        if not self._by_id[request]:
            del self._by_id[request]
            self._unstarted.discard(request)
        return Delta(
            request,
            tokens,
            reason,
            choice=sequence.choice,
            logprobs=logprobs,
            cached=sequence.cached or 0,
            timings=sequence.timings(now),
            error=error,
        )

    def _release(self, sequence: Sequence, now: float, *, keep: bool) -> None:
        """The only place where a sequence gives its memory back."""
        assert sequence.holder is not None
        self.memory.close(sequence.holder, sequence.known, now, keep=keep)
        self._running.remove(sequence)
        sequence.holder = None

    # --- reporting ---

    def take_started(self) -> tuple[int, ...]:
        """Requests that left the queue since the last call."""
        started, self._started = tuple(self._started), []
        return started

    def take_admissions(self) -> tuple[Admission, ...]:
        """Where sequences that began to run since the last call got their prefix from."""
        admissions, self._admissions = tuple(self._admissions), []
        return admissions

    def stats(self, plan: Plan, outcome: Outcome) -> Stats:
        """The state after a step."""
        usage = self.memory.usage
        # A decode that failed may be followed by others that weren't tried.
        tried = plan.decodes[: len(outcome.results)]
        return Stats(
            running=len(self._running),
            waiting=len(self._queue),
            cells_used=usage.active,
            seconds=outcome.seconds,
            prefill_tokens=plan.prefill_rows,
            decode_tokens=plan.decode_rows,
            preemptions=self._preemptions,
            cells_cached=usage.cached,
            host_bytes=usage.host_bytes,
            verifications=tuple(self._guessing.verifications),
            drafting=self._guessing.drafting,
            cells_highest=outcome.cells_highest,
            decodes=len(tried),
            ubatches=outcome.ubatches,
            output_rows=sum(span.outputs for decode in tried for span in decode.spans),
            host_seconds=outcome.host_seconds,
        )

    def _problem(self, request: Generate) -> str:
        """Why the engine can't serve this request at all; "" if it can."""
        length, rest = divmod(len(request.prompt), 4)
        if rest or request.max_tokens < 1 or request.choices < 1:
            return "a prompt must be whole int32 token ids, and max_tokens and choices at least 1"
        if not 0 < length < self._context:
            return f"a prompt of {length} tokens doesn't fit a context of {self._context}"
        if request.id in self._by_id:
            return f"request id {request.id} is in use"
        if request.constraint is not None and self._open_grammar is None:
            return "this engine has no grammars"
        return ""
