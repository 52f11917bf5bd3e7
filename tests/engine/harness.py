"""A scheduler, a fake backend and a hand-made clock, with the engine's invariants checked after every step.

The fake's tokens depend on a sequence's own history alone, so `alone` says what any request must get whatever ran
beside it. Reads the scheduler's private lists: that is the point of an invariant.
"""

from collections.abc import Sequence

import numpy as np

from forgelm.engine.fake import FakeBackend, FakeSettings, fake_token
from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import Decode, Plan, Span, Trim
from forgelm.engine.scheduler import Scheduler
from forgelm.ipc.messages import Delta, Generate
from forgelm.llama.status import DecodeStatus


def prompt_of(request_id: int, length: int) -> list[int]:
    """A prompt that no other request has."""
    return [request_id * 7919 + position for position in range(length)]


def generate(request_id: int, prompt: int | list[int], max_tokens: int = 8, **fields) -> Generate:
    """A request for `prompt`: token ids, or how many."""
    ids = prompt_of(request_id, prompt) if isinstance(prompt, int) else prompt
    return Generate(request_id, np.array(ids, np.int32).tobytes(), max_tokens, **fields)


def alone(request: Generate, context: int) -> tuple[list[int], str]:
    """The tokens and the finish reason of a request that has the engine to itself."""
    history = np.frombuffer(request.prompt, np.int32).tolist()
    limit = min(len(history) + request.max_tokens, context)
    tokens: list[int] = []
    while True:
        tokens.append(fake_token(history))
        history.append(tokens[-1])
        if tokens[-1] in request.stop_tokens:
            return tokens, "stop"
        if len(history) >= limit:
            return tokens, "length"


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
    ) -> None:
        """`room`: cells that the backend really has, when that is not what the scheduler was told."""
        settings = FakeSettings(step=step, row=row, context=room or cells, slots=slots)
        self.backend = FakeBackend(settings, sleep=lambda _: None, split_batches=split)
        self.pacer = Pacer(mode, target_itl_ms, n_ubatch, row)
        self.scheduler = Scheduler(cells=cells, slots=slots, pacer=self.pacer, split_batches=split, recurrent=split)
        self.cells, self.slots, self.n_ubatch, self.split, self.room = cells, slots, n_ubatch, split, room
        self.now = 1.0
        self.requests: dict[int, Generate] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, Delta] = {}
        self.started: list[int] = []
        self.started_ids: set[int] = set()
        self.plans: list[Plan] = []
        self.poison: set[int] = set()
        """Requests that make every decode they are in fail."""

    # --- requests ---

    def add(self, request_id: int, prompt: int | list[int], max_tokens: int = 8, **fields) -> Generate:
        request = generate(request_id, prompt, max_tokens, **fields)
        self.requests[request_id] = request
        self.tokens[request_id] = []
        self.scheduler.add(request, self.now)
        return request

    def abort(self, request_id: int) -> None:
        self.scheduler.abort(request_id, self.now)

    # --- steps ---

    def step(self, *statuses: DecodeStatus) -> list[Delta]:
        """One step, whose decodes answer `statuses`."""
        plan = self.scheduler.plan(self.now)
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
            assert delta.id not in self.ended, f"request {delta.id} got a delta after its end: {delta}"
            if delta.tokens:
                assert delta.id in self.started_ids, f"request {delta.id} got a token before it was reported as started"
                self.tokens[delta.id] += delta.tokens
            if delta.finish is not None:
                self.ended[delta.id] = delta
                assert (delta.error != "") == (delta.finish == "error")

    # --- what must always hold ---

    def check_plan(self, plan: Plan) -> None:
        """A plan asks nothing impossible of a backend: see `Plan`'s docstring."""
        rows = sum(decode.rows for decode in plan.decodes)
        assert rows == plan.decode_rows + plan.prefill_rows
        assert plan.prefill_rows <= max(0, self.n_ubatch - plan.decode_rows)
        assert plan.decode_rows <= self.slots
        slots = [span.slot for span in self.spans(plan)]
        assert len(set(slots)) == len(slots), "a slot twice in one step"
        first_decode = next((i for i, op in enumerate(plan.operations) if isinstance(op, Decode)), None)
        if first_decode is not None:
            assert not any(isinstance(op, Trim) for op in plan.operations[first_decode:])
        if self.split and len(plan.decodes) == 2:
            assert plan.decodes[0].rows == plan.decode_rows
        assert len(plan.decodes) <= (2 if self.split else 1)

    def check_state(self) -> None:
        """Slots, cells and tokens add up."""
        scheduler = self.scheduler
        running = scheduler._running
        used = {sequence.slot for sequence in running}
        assert used.isdisjoint(scheduler._free_slots)
        assert len(used) == len(running)
        assert sorted([*used, *scheduler._free_slots]) == list(range(self.slots))
        assert scheduler.cells_used <= self.cells
        trimmed = {trim.slot for trim in scheduler._trims}
        for slot, memory in enumerate(self.backend.memory):
            assert not memory or slot in used or slot in trimmed, f"slot {slot} is free but never wiped"
        for sequence in running:
            assert self.backend.memory[sequence.slot] == sequence.tokens[: sequence.computed].tolist() or (
                sequence.slot in trimmed and not sequence.computed
            )
        open_ids = {s.request.id for s in [*running, *scheduler._waiting]}
        assert open_ids == set(scheduler._by_id)

    def check_answers(self) -> None:
        """Everyone ended, and with the text they would have got alone (or the beginning of it)."""
        assert self.ended.keys() == self.requests.keys()
        for request_id, delta in self.ended.items():
            tokens, reason = alone(self.requests[request_id], self.cells) if delta.timings else ([], "error")
            got = self.tokens[request_id]
            if delta.finish in ("stop", "length"):
                assert (got, delta.finish) == (tokens, reason)
            else:
                assert got == tokens[: len(got)]

    # --- reading plans ---

    @staticmethod
    def spans(plan: Plan) -> list[Span]:
        return [span for decode in plan.decodes for span in decode.spans]
