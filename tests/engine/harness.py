"""A scheduler, a fake backend and a hand-made clock, with the engine's invariants checked after every step.

The fake's tokens depend on a sequence's own history alone, so `alone` says what any request must get whatever ran
beside it. Reads the scheduler's private lists: that is the point of an invariant.
"""

from collections.abc import Sequence

import numpy as np

from forgelm.config import Cache
from forgelm.engine.cellcost import CellCost
from forgelm.engine.fake import (
    FIRST_TOKEN,
    VARIETY,
    FakeBackend,
    FakeSettings,
    fake_token,
)
from forgelm.engine.fake_memory import CELL_BYTES, STATE_BYTES
from forgelm.engine.guessing import Guessing
from forgelm.engine.memory import Memory
from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import Decode, Fork, Mask, MatchFailed, Plan, Span, Trim
from forgelm.engine.routes import Costs, Shape
from forgelm.engine.scheduler import MAX_FORCED, Scheduler
from forgelm.engine.speculation import Speculator
from forgelm.ipc.messages import Constraint, Delta, Generate
from forgelm.llama.status import DecodeStatus

NO_CACHE = Cache(prefix_cache=False)


def prompt_of(request_id: int, length: int) -> list[int]:
    """A prompt that no other request has."""
    return [request_id * 7919 + position for position in range(length)]


def generate(request_id: int, prompt: int | list[int], max_tokens: int = 8, **fields) -> Generate:
    """A request for `prompt`: token ids, or how many."""
    ids = prompt_of(request_id, prompt) if isinstance(prompt, int) else prompt
    return Generate(request_id, np.array(ids, np.int32).tobytes(), max_tokens, **fields)


Key = int | tuple[int, int]
"""A request's first choice by its id alone, the others by id and choice."""


def key_of(request_id: int, choice: int) -> Key:
    return (request_id, choice) if choice else request_id


def alone(request: Generate, context: int, choice: int = 0) -> tuple[list[int], str]:
    """The tokens and the finish reason of a choice that has the engine to itself."""
    history = np.frombuffer(request.prompt, np.int32).tolist()
    limit = min(len(history) + request.max_tokens, context)
    grammar = Steps(request.constraint) if request.constraint else None
    closing: list[int] = []
    thinking = request.budget is not None
    tokens: list[int] = []
    while True:
        if thinking and len(tokens) >= request.budget.tokens:
            closing, thinking = list(request.budget.closing), False
        if closing:
            token = closing.pop(0)
        else:
            banned = request.stop_tokens if len(tokens) < request.min_tokens else ()
            token = next_allowed(fake_token(history, choice), grammar, banned)
        tokens.append(token)
        history.append(token)
        thinking = thinking and token not in request.budget.ends
        if grammar:
            grammar.advance(token)
        if token in request.stop_tokens and len(tokens) > request.min_tokens:
            return tokens, "stop"
        if grammar and grammar.finished:
            return tokens, "stop"
        if len(history) >= limit:
            return tokens, "length"


def next_allowed(token: int, grammar: "Steps | None", banned: Sequence[int]) -> int:
    """`token`, or the next one round the vocabulary that may be drawn."""
    allowed = grammar.allowed() if grammar else None
    size = FIRST_TOKEN + VARIETY
    while token in banned or (allowed is not None and token not in allowed):
        token = (token + 1) % size
    return token


class Steps:
    """A grammar of one set of allowed tokens after the other: `"1001|1002 1003 *"`; `*` is any token, a word fails."""

    def __init__(self, constraint: Constraint) -> None:
        self._sets = [
            None if word == "*" else {int(token) if token.isdigit() else -1 for token in word.split("|")}
            for word in constraint.grammar.split()
        ]
        self._triggers = constraint.triggers
        self._at = -1 if self._triggers else 0
        self._past: list[int] = []
        """Where it was before each token."""

    def allowed(self) -> set[int] | None:
        return None if self._at < 0 else self._sets[self._at]

    def mask(self) -> Mask | None:
        allowed = self.allowed()
        if allowed is None:
            return None
        if -1 in allowed:
            raise MatchFailed("a broken grammar")
        bits = np.zeros(-(-(FIRST_TOKEN + VARIETY) // 32) * 32, np.uint8)
        bits[list(allowed)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def advance(self, token: int) -> None:
        at = self._at
        self._advance(token)
        self._past.append(at)

    def _advance(self, token: int) -> None:
        if self._at < 0 and token in self._triggers:
            self._at = 0
        if self._at < 0:
            return
        allowed = self.allowed()
        if allowed is not None and token not in allowed:
            raise MatchFailed(f"token {token} isn't allowed")
        self._at += 1

    def forced(self) -> tuple[int, ...]:
        found: list[int] = []
        for allowed in self._sets[self._at :] if self._at >= 0 else []:
            if allowed is None or len(allowed) != 1 or -1 in allowed:
                break
            found += allowed
        return tuple(found)

    def accepts(self, tokens: Sequence[int]) -> int:
        count = 0
        for token in tokens:
            if self.finished or (self._at >= 0 and token not in (self.allowed() or (token,))):
                break
            self.advance(token)
            count += 1
        self.rollback(count)
        return count

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._at = self._past.pop()

    @property
    def finished(self) -> bool:
        return self._at >= len(self._sets)


class Harness:
    """Drives steps and keeps everything that came out."""

    def __init__(
        self,
        *,
        cells: int = 256,
        slots: int = 4,
        n_ubatch: int = 64,
        split: bool = False,
        step: float = 0.01,
        row: float = 0.001,
        mode: str = "low_latency",
        target_itl_ms: float = 0.0,
        room: int = 0,
        cache: Cache = NO_CACHE,
        host_bytes: int = 0,
        files: dict[str, tuple[bool, list[int]]] | None = None,
        ranked: bool = False,
        guess: int = 0,
        errors: int = 5,
        adaptive: bool = False,
    ) -> None:
        """`room`: cells that the backend really has, when that is not what the scheduler was told.

        `files` is what a former process left on disk. `slots` run at once; `cache` adds its `sequences` to them.
        `ranked`: the slots beyond one more than run give the highest logits alone. `guess`: tokens guessed for every
        sequence at each step, of which one in `errors` is wrong; `adaptive`: as many of them as pay.
        """
        self.guess = guess
        settings = FakeSettings(
            step=step, row=row, context=room or cells, slots=slots, draft_rows=guess * slots, draft_errors=errors
        )
        kept = cache.kept_sequences(slots, recurrent=split)
        whole_slots = slots + 1 if ranked else None
        self.backend = FakeBackend(
            settings, sleep=lambda _: None, split_batches=split, kept=kept, whole_slots=whole_slots
        )
        self.backend.files.update(files or {})
        self.pacer = Pacer(mode, target_itl_ms, n_ubatch, row, cells=CellCost(cache.device_cells or None))
        self.memory = Memory(
            Shape(cells, split, CELL_BYTES, STATE_BYTES if split else 0),
            slots=slots + kept,
            cache=cache,
            costs=Costs(row),
            host_bytes=host_bytes,
            archived=self.backend.archived(),
            whole_slots=whole_slots,
        )
        drafters = self.backend.facts.drafters
        speculator = Speculator(
            drafters=drafters, depth=guess, rows=guess * slots, uniform=split, adaptive=adaptive, row_seconds={}
        )
        self.scheduler = Scheduler(
            self.memory,
            self.pacer,
            parallel=slots,
            split_batches=split,
            open_grammar=Steps,
            guessing=Guessing(speculator if guess else None, drafters),
        )
        self.cells, self.slots, self.n_ubatch, self.split, self.room = cells, slots, n_ubatch, split, room
        self.now = 1.0
        self.requests: dict[int, Generate] = {}
        self.tokens: dict[Key, list[int]] = {}
        self.ended: dict[Key, Delta] = {}
        self.started: list[int] = []
        self.started_ids: set[int] = set()
        self.plans: list[Plan] = []
        self.poison: set[int] = set()
        """Requests that make every decode they are in fail."""

    # --- requests ---

    def add(self, request_id: int, prompt: int | list[int], max_tokens: int = 8, **fields) -> Generate:
        request = generate(request_id, prompt, max_tokens, **fields)
        self.requests[request_id] = request
        self.tokens |= {key_of(request_id, choice): [] for choice in range(request.choices)}
        self.scheduler.add(request, self.now)
        return request

    def abort(self, request_id: int) -> None:
        self.scheduler.abort(request_id, self.now)

    # --- steps ---

    def step(self, *statuses: DecodeStatus) -> list[Delta]:
        """One step, whose decodes answer `statuses`."""
        asks = self.scheduler.ask(self.now)
        plan = self.scheduler.plan(self.now, self.backend.draft(asks))
        self.backend.statuses[:] = statuses or self._poisoned()
        self.plans.append(plan)
        self.check_plan(plan)
        planned = {sequence.request.id for group in self.scheduler._in_flight for sequence in group}
        outcome = self.backend.run(plan)
        if not (statuses or self.poison or self.room):
            assert all(result.status is DecodeStatus.OK for result in outcome.results), "more rows than cells"
        self.now += outcome.seconds
        deltas = self.scheduler.apply(plan, outcome, self.now)
        known = len(self.started)
        self.record(deltas)
        assert planned.issuperset(self.started[known:]), "a slot was given to somebody who had nothing to compute"
        self.check_state()
        return deltas

    def run(self, limit: int = 5000) -> None:
        """Step until there is nothing to do."""
        while self.scheduler.has_work:
            limit -= 1
            assert limit > 0, "the engine never comes to an end"
            self.step()

    def until(self, request_id: int, tokens: int) -> None:
        """Step until a request has so many tokens."""
        for _ in range(5000):
            if len(self.tokens[request_id]) >= tokens:
                return
            self.step()
        raise AssertionError(f"request {request_id} never got {tokens} tokens")

    def _poisoned(self) -> list[DecodeStatus]:
        groups = self.scheduler._in_flight if self.poison else []
        bad = [any(sequence.request.id in self.poison for sequence in group) for group in groups]
        return [DecodeStatus.FAILED if each else DecodeStatus.OK for each in bad]

    def record(self, deltas: Sequence[Delta]) -> None:
        """Take in a step's results; nobody ends twice, or gets a token before being reported as started."""
        started = self.scheduler.take_started()
        assert self.started_ids.isdisjoint(started)
        self.started += started
        self.started_ids.update(started)
        for delta in deltas:
            key = key_of(delta.id, delta.choice)
            assert key not in self.ended, f"request {key} got a delta after its end: {delta}"
            if delta.tokens:
                assert delta.id in self.started_ids, f"request {delta.id} got a token before it was reported as started"
                assert len(delta.logprobs) == (len(delta.tokens) if self.requests[delta.id].logprobs >= 0 else 0)
                self.tokens[key] += delta.tokens
            if delta.finish is not None:
                self.ended[key] = delta
                assert (delta.error != "") == (delta.finish in ("error", "refused"))

    # --- what must always hold ---

    def check_plan(self, plan: Plan) -> None:
        """A plan asks nothing impossible of a backend: see `Plan`'s docstring."""
        rows = sum(decode.rows for decode in plan.decodes)
        assert rows == plan.decode_rows + plan.prefill_rows
        guessed = sum(len(span.guesses) for span in self.spans(plan))
        assert plan.prefill_rows <= max(0, self.n_ubatch - (plan.decode_rows - guessed))
        assert all(decode.rows <= self.n_ubatch for decode in plan.decodes)
        assert plan.decode_rows - guessed <= self.slots * MAX_FORCED
        assert guessed <= self.slots * self.guess
        slots = [span.slot for span in self.spans(plan)]
        assert len(set(slots)) == len(slots), "a slot twice in one step"
        first_decode = next((i for i, op in enumerate(plan.operations) if isinstance(op, Decode)), None)
        if first_decode is not None:
            assert not any(isinstance(op, Trim) for op in plan.operations[first_decode:])
        if self.split and len(plan.decodes) == 2 and not guessed:
            assert plan.decodes[0].rows == plan.decode_rows
        assert len(plan.decodes) <= (2 if self.split and not guessed else 1 if not self.split else self.slots + 1)

    def check_state(self) -> None:
        """Slots, cells and tokens add up."""
        scheduler, memory = self.scheduler, self.memory
        running = scheduler._running
        used = [sequence.slot for sequence in running]
        kept = [holder.slot for holder in memory._kept]
        assert sorted([*used, *kept, *memory._slots.free]) == list(range(len(self.backend.memory)))
        usage = memory.usage
        assert usage.free + usage.cached + usage.active == self.cells
        assert min(usage.free, usage.cached, usage.active) >= 0
        open_ids = {s.request.id for s in [*running, *scheduler._queue]}
        assert open_ids == set(scheduler._by_id)
        assert scheduler._unstarted <= open_ids
        self.check_cells()
        check_tree(memory)

    def check_cells(self) -> None:
        """What is planned to be in memory is there: compared once no operation is outstanding."""
        memory = self.memory
        changing = {trim.slot for trim in memory._operations if isinstance(trim, Trim) and not trim.length}
        changing |= {fork.target for fork in memory._operations if isinstance(fork, Fork)}
        held = {sequence.slot: sequence.known[: sequence.computed] for sequence in self.scheduler._running}
        held |= {holder.slot: holder.tokens for holder in memory._kept}
        for slot, tokens in enumerate(self.backend.memory):
            if slot not in changing:
                assert tokens == held.get(slot, np.empty(0)).tolist(), f"slot {slot} isn't what it is taken for"
        if not memory.has_operations:
            assert memory.ledger.used == self.backend.cells_used
            states = self.backend.slots.saved
            assert memory.usage.host_bytes == sum(self.backend.slots.size(key) for key in states)
            assert states.keys() == memory._tiers._in_ram.keys()

    def check_answers(self) -> None:
        """Everyone ended, and with the text they would have got alone (or the beginning of it)."""
        assert self.ended.keys() == self.tokens.keys()
        for key, delta in self.ended.items():
            request = self.requests[delta.id]
            tokens, reason = alone(request, self.cells, delta.choice) if delta.timings else ([], "error")
            got = self.tokens[key]
            if delta.finish in ("stop", "length"):
                assert (got, delta.finish) == (tokens, reason)
            else:
                assert got == tokens[: len(got)]

    # --- reading plans ---

    def operations(self, kind: type) -> list:
        """All operations of a kind so far."""
        return [operation for plan in self.plans for operation in plan.operations if isinstance(operation, kind)]

    @staticmethod
    def spans(plan: Plan) -> list[Span]:
        return [span for decode in plan.decodes for span in decode.spans]


def check_tree(memory: Memory) -> None:
    """Every node is on somebody's path, in one piece, and every checkpoint can be used."""
    in_tree: set[int] = set()
    for node in memory._tree.nodes():
        assert node.holders, "a node that nobody holds"
        assert len(node.tokens) > 0
        assert node.parent is not None
        assert node.parent.children[int(node.tokens[0])] is node
        assert node.start == node.parent.end
        in_tree |= {id(holder) for holder in node.holders}
        if node.checkpoint is not None:
            assert node.checkpoint.depth == node.end
            assert node.checkpoint.key or node.checkpoint.name or node.checkpoint in memory._tiers._archiving.values()
    assert {id(holder) for holder in memory._kept} <= in_tree
    assert memory._tiers.bytes <= memory._tiers._limit
