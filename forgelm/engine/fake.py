"""A backend without a model: the same plans, made-up tokens, and faults on demand.

Tokens are a function of the sequence's own history, so a request that is preempted, recomputed or run beside others
must get the same ones. Memory operations are checked as strictly as the real backend's: a plan that would corrupt a
sequence raises here.
"""

import time
import zlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from forgelm.engine.fake_memory import CELL_BYTES, STATE_BYTES, FakeMemory, require
from forgelm.engine.plan import (
    CANDIDATES,
    UNDECIDED,
    Archive,
    Ask,
    Decode,
    DecodeResult,
    Drafts,
    Draw,
    Drawn,
    Drop,
    Fetch,
    Mask,
    MatchFailed,
    Moves,
    Outcome,
    Plan,
    Restore,
    Save,
    Span,
    Tokens,
)
from forgelm.engine.prefix import Kept
from forgelm.engine.sampling import fits_candidates
from forgelm.engine.verify import verify
from forgelm.ipc.messages import ModelFacts, TokenLogprobs
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
    draft_rows: int = 0
    """Rows that a step may guess; a made-up draft model makes the guesses."""
    draft_errors: int = 5
    """One guess in so many is wrong; 0: none."""
    script: tuple[int, ...] = ()
    """The tokens that every answer begins with, before made-up ones."""


class FakeBackend:
    """Counts positions, draws tokens from a hash, sleeps."""

    def __init__(
        self,
        settings: FakeSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        split_batches: bool = False,
        kept: int = 0,
        whole_slots: int | None = None,
    ) -> None:
        """`split_batches` makes it behave like a hybrid; `kept` is the number of slots beside the running ones.

        In slots from `whole_slots` on the highest logits don't always tell which token it is.
        """
        self.whole_slots = whole_slots
        self._settings = settings
        self._sleep = sleep
        self.splits_batches = split_batches
        self.slots = FakeMemory(settings.slots + kept, settings.context, recurrent=split_batches)
        self._reading: list[Fetch] = []
        self.spared = 0
        """Cores that are left to others."""
        self.lose_restores = 0
        """This many of the next restores find no room. For tests."""
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
            cell_bytes=CELL_BYTES,
            state_bytes=STATE_BYTES if self.splits_batches else 0,
            drafters=("draft",) if settings.draft_rows else (),
            draft_depth=settings.draft_rows,
        )

    @property
    def memory(self) -> list[list[int]]:
        """Token ids held by each slot."""
        return self.slots.tokens

    @property
    def cells_used(self) -> int:
        return self.slots.cells_used

    @property
    def files(self) -> dict[str, tuple[bool, list[int]]]:
        """What was archived."""
        return self.slots.files

    def run(self, plan: Plan) -> Outcome:
        results: list[DecodeResult] = []
        saved: list[tuple[int, int]] = []
        archived: list[tuple[int, str]] = []
        reading, self._reading = self._reading, []
        fetched = tuple(self.slots.read(fetch) for fetch in reading)
        lost = False
        if plan.decodes:
            self._take_step(plan)
        for operation in plan.operations:
            if lost and not isinstance(operation, Drop | Archive | Fetch):
                continue
            match operation:
                case Decode():
                    if not results or results[-1].status is DecodeStatus.OK:
                        results.append(self._decode(operation))
                case Save(slot, key, whole):
                    saved.append((key, self.slots.save(slot, key, whole=whole)))
                case Restore(slot, key):
                    lost = self._loses_restore()
                    if not lost:
                        self.slots.restore(slot, key)
                case Drop(key):
                    require(lost or key in self.slots.saved, f"drop of {key}, which isn't saved")
                    self.slots.drop(key)
                case Archive(key, tokens):
                    archived.append((key, self.slots.archive(key, tokens)))
                case Fetch():
                    self._reading.append(operation)
                case _:
                    self.slots.arrange(operation)
        moves = Moves(tuple(saved), archived=tuple(archived), fetched=fetched, lost=lost)
        seconds = self._duration(plan) if plan.decodes else 0.0
        # Its cells have no numbers: they lie without gaps, and a batch is never split.
        return Outcome(tuple(results), seconds, moves, ubatches=len(results), cells_highest=self.cells_used)

    @property
    def open_grammar(self) -> None:
        """There is no vocabulary to compile one for."""

    def archived(self) -> list[Kept]:
        return self.slots.archived()

    def spare(self, cores: int) -> None:
        """Note it: sleeping takes no core."""
        self.spared = cores

    def close(self) -> None:
        self.slots.tokens.clear()

    def _loses_restore(self) -> bool:
        """Whether the next restore is one of those that find no room."""
        lost = self.lose_restores > 0
        self.lose_restores -= lost
        return lost

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
        if self.cells_used + decode.rows > self._settings.context:
            status = DecodeStatus.NO_ROOM
        if status.taints:
            # Whatever the real memory holds now, it isn't what anybody counted on.
            used = [slot for slot, memory in enumerate(self.memory) if memory]
            for slot in used if self.splits_batches else [span.slot for span in decode.spans]:
                self.slots.append(slot, [TAINT])
        if status is not DecodeStatus.OK:
            return DecodeResult(status, ((),) * len(decode.spans), (0,) * len(decode.spans))
        if self.splits_batches and any(len(span.guesses) for span in decode.spans):
            require(len({span.rows for span in decode.spans}) == 1, "verify spans of different lengths on a hybrid")
        drawn, kept = zip(*(self._compute(span) for span in decode.spans), strict=True)
        return DecodeResult(status, drawn, kept, self._settings.step)

    def _compute(self, span: Span) -> tuple[tuple[Drawn, ...], int]:
        memory, draw = self.slots.begin(span.slot, span.start, span.tokens.tolist()), span.draw
        if draw is None:
            return (), span.rows
        require(draw.tokens.tolist() == memory, f"a draw in {span.slot} for another text")
        self.slots.append(span.slot, span.guesses.tolist())
        if len(span.guesses):
            require(span.ahead.tolist() == memory, f"guesses in {span.slot} that lie elsewhere")
        drawn, kept = verify(span, lambda _, later: self._draw(span.slot, later))
        if kept < span.rows:
            self.slots.roll_back(span.slot, span.start + kept)
        return drawn, kept

    def _draw(self, slot: int, draw: Draw) -> Drawn:
        history = draw.tokens.tolist()
        if self.whole_slots is not None and slot >= self.whole_slots:
            fits = fits_candidates(draw.sampling, draw.logprobs, draw.matcher, CANDIDATES)
            require(fits, f"a token in {slot}, which has no whole rows")
            if fake_token(history) % 7 == 0:
                return Drawn(UNDECIDED)
        return _fake_draw(history, draw, self._settings.script)

    @property
    def draft_rows(self) -> int:
        return self._settings.draft_rows

    @property
    def row_seconds(self) -> dict[int, float]:
        """Guesses cost nothing here."""
        settings = self._settings
        return dict.fromkeys(range(1, settings.draft_rows + 2), settings.step) if settings.draft_rows else {}

    def draft(self, asks: Sequence[Ask]) -> Drafts:
        return Drafts(tuple(self._guess(ask) for ask in asks))

    def _guess(self, ask: Ask) -> Tokens:
        """What will be drawn, but for a wrong one now and then."""
        history, guesses = ask.draw.tokens.tolist(), []
        for _ in range(ask.depth):
            token = fake_token(history, ask.draw.choice)
            errors = self._settings.draft_errors
            guesses.append(token + 1 if errors and zlib.crc32(repr(history).encode()) % errors == 0 else token)
            history.append(guesses[-1])
        return np.array(guesses, np.int32)


def fake_token(history: list[int], choice: int = 0) -> int:
    """The token that follows `history`: a hash of its length and last few tokens, and of the choice after the first."""
    tail = ",".join(map(str, (len(history), *history[-8:], *([choice] if choice else []))))
    return FIRST_TOKEN + zlib.crc32(tail.encode()) % VARIETY


def _fake_draw(history: list[int], draw: Draw, script: Sequence[int]) -> Drawn:
    """The scripted or made-up token, or the next one that may be drawn."""
    token = script[draw.index] if draw.index < len(script) else fake_token(history, draw.choice)
    if draw.fixed >= 0:
        token = draw.fixed
    try:
        mask = draw.matcher.mask() if draw.matcher is not None else None
    except MatchFailed as error:
        return Drawn(-1, problem=str(error))
    if draw.fixed < 0 and (mask is not None or token in draw.banned):
        allowed = _allowed(mask) - set(draw.banned)
        if not allowed:
            return Drawn(-1, problem="no token is allowed")
        token = min(allowed, key=lambda other: (other - token) % (FIRST_TOKEN + VARIETY))
    logprobs = TokenLogprobs(-1.0, tuple((token + n, -1.0 - n) for n in range(draw.logprobs)))
    return Drawn(token, logprobs if draw.logprobs >= 0 else None)


def _allowed(mask: Mask | None) -> set[int]:
    if mask is None:
        return set(range(FIRST_TOKEN + VARIETY))
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
