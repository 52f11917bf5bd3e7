"""A backend without a model: the same plans, made-up tokens, and faults on demand.

Tokens are a function of the sequence's own history, so a request that is preempted, recomputed or run beside others
must get the same ones. Memory operations are checked as strictly as the real backend's: a plan that would corrupt a
sequence raises here.
"""

import time
import zlib
from collections.abc import Callable

import msgspec

from forgelm.engine.plan import Decode, DecodeResult, Fork, Outcome, Plan, Restore, Save, Span, Trim
from forgelm.ipc.messages import ModelFacts
from forgelm.llama.status import DecodeStatus

FIRST_TOKEN = 1000
VARIETY = 500
"""Made-up tokens lie in FIRST_TOKEN … FIRST_TOKEN + VARIETY − 1: ordinary words in the vocabularies used."""

TAINT = -1
"""Left in the memory of a slot whose decode failed half-way: the next span there doesn't fit unless it was wiped."""


class FakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the fake behaves, as JSON in `FORGELM_FAKE_ENGINE`. Times in seconds, counts in steps that decode."""

    step: float = 0.01
    row: float = 0.0
    """Added per prefill row."""
    load: float = 0.0
    context: int = 8192
    slots: int = 8
    hang_at: int = 0
    """Never return from this step (0: never)."""
    crash_at: int = 0
    """Kill the process in this step."""
    fail_load: str = ""
    """Refuse to load, with this reason."""


class FakeBackend:
    """Counts positions, draws tokens from a hash, sleeps."""

    def __init__(
        self,
        settings: FakeSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        split_batches: bool = False,
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self.splits_batches = split_batches
        self.memory: list[list[int]] = [[] for _ in range(settings.slots)]
        """Token ids held by each slot."""
        self._saved: dict[int, list[int]] = {}
        self.statuses: list[DecodeStatus] = []
        """Statuses for the next decodes, first one first; OK when empty. For tests."""
        self.steps = 0
        sleep(settings.load)

    @property
    def facts(self) -> ModelFacts:
        settings = self._settings
        return ModelFacts(
            architecture="fake",
            description="fake engine",
            parameters=0,
            bytes=0,
            layers=0,
            vocabulary=FIRST_TOKEN + VARIETY,
            context_train=settings.context,
            context=settings.context,
            slots=settings.slots,
            kv_type="f16",
            recurrent=self.splits_batches,
            sliding_window=0,
            devices=("fake",),
            threads=1,
            llama_build="fake",
            load_seconds=settings.load,
            warmup_decode_seconds=settings.step,
            cells=settings.context,
            warmup_prefill_rate=1 / settings.row if settings.row else 100_000.0,
        )

    def run(self, plan: Plan) -> Outcome:
        results: list[DecodeResult] = []
        if plan.decodes:
            self._take_step(plan)
        for operation in plan.operations:
            match operation:
                case Decode():
                    if not results or results[-1].status is DecodeStatus.OK:
                        results.append(self._decode(operation))
                case Trim(slot, length):
                    _require(length <= len(self.memory[slot]), f"trim {slot} to {length}")
                    del self.memory[slot][length:]
                case Fork(source, target, length):
                    _require(not self.memory[target], f"fork into used slot {target}")
                    _require(length <= len(self.memory[source]), f"fork {length} of {source}")
                    self.memory[target] = self.memory[source][:length]
                case Save(slot, key):
                    self._saved[key] = list(self.memory[slot])
                case Restore(slot, key):
                    self.memory[slot] = list(self._saved[key])
        return Outcome(tuple(results), self._duration(plan) if plan.decodes else 0.0)

    def close(self) -> None:
        self.memory = []

    def _take_step(self, plan: Plan) -> None:
        self.steps += 1
        if self.steps == self._settings.crash_at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == self._settings.hang_at:
            while True:
                self._sleep(3600)
        self._sleep(self._duration(plan))

    def _duration(self, plan: Plan) -> float:
        # Steps that take no time at all would teach the pacer that rows are free, and free rows have no budget.
        return max(self._settings.step + self._settings.row * plan.prefill_rows, 1e-6)

    def _decode(self, decode: Decode) -> DecodeResult:
        status = self.statuses.pop(0) if self.statuses else DecodeStatus.OK
        if sum(map(len, self.memory)) + decode.rows > self._settings.context:
            status = DecodeStatus.NO_ROOM
        if status.taints:
            # Whatever the real memory holds now, it isn't what anybody counted on.
            used = [slot for slot, memory in enumerate(self.memory) if memory]
            for slot in used if self.splits_batches else [span.slot for span in decode.spans]:
                self.memory[slot].append(TAINT)
        if status is not DecodeStatus.OK:
            return DecodeResult(status, (None,) * len(decode.spans))
        return DecodeResult(status, tuple(self._compute(span) for span in decode.spans))

    def _compute(self, span: Span) -> int | None:
        memory = self.memory[span.slot]
        _require(len(memory) == span.start, f"slot {span.slot} holds {len(memory)}, span starts at {span.start}")
        memory.extend(span.tokens.tolist())
        return None if span.draw is None else fake_token(memory)


def fake_token(history: list[int]) -> int:
    """The token that follows `history`: a hash of its length and last few tokens."""
    tail = ",".join(map(str, (len(history), *history[-8:])))
    return FIRST_TOKEN + zlib.crc32(tail.encode()) % VARIETY


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"a plan broke memory: {what}")
