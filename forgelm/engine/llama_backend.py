"""The backend that computes: plans carried out by llama.cpp."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from forgelm.config import FLUSH_SECONDS, Cache, Engine
from forgelm.engine.constraint import Constraints
from forgelm.engine.disk import DiskTier
from forgelm.engine.draft_model import DraftModelDrafter
from forgelm.engine.drafter import ModelDrafter
from forgelm.engine.mtp import MtpDrafter
from forgelm.engine.placement import place
from forgelm.engine.plan import (
    CANDIDATES,
    NO_DRAFTS,
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
    Fork,
    Matcher,
    Outcome,
    Plan,
    Restore,
    Save,
    Settle,
    Span,
    Trim,
)
from forgelm.engine.prefix import Kept
from forgelm.engine.sampling import draw_candidates, draw_token
from forgelm.engine.vault import Vault
from forgelm.engine.verify import verify
from forgelm.engine.warmup import Warmup
from forgelm.errors import ModelError
from forgelm.ipc.messages import Constraint, ModelFacts
from forgelm.ipc.start import Drafting
from forgelm.llama.context import Context, ContextOptions
from forgelm.llama.devices import list_devices
from forgelm.llama.guidance import Guidance
from forgelm.llama.lib import build_info
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from forgelm.machine import read_machine

NO_CACHE = Cache(prefix_cache=False)
NO_DRAFTING = Drafting()
DISK_WAIT = 0.05
"""Seconds that a step with nothing to compute waits for the disk."""


class LlamaBackend:
    """A model and one context, for as long as the engine process lives."""

    def __init__(
        self,
        path: Path,
        engine: Engine,
        threads: int,
        progress: Callable[[float], bool],
        *,
        cache: Cache = NO_CACHE,
        disk: DiskTier | None = None,
        drafting: Drafting = NO_DRAFTING,
    ) -> None:
        """Load and warm up. `disk` is closed with the backend. Raises `ModelError` or `MachineError` with one line."""
        began = time.monotonic()
        cards = place(engine, read_machine(), list_devices())
        self._on_gpu = bool(cards)
        devices = tuple((card.name, card.handle) for card in cards)
        own_head = drafting.mtp == str(path)
        self._model = Model.load(
            path, n_gpu_layers=engine.n_gpu_layers, devices=devices, progress=progress, load_mtp=own_head
        )
        slots = engine.parallel + cache.kept_sequences(engine.parallel, recurrent=self._model.recurrent)
        recurrent = self._model.recurrent
        self._draft_rows = drafting.rows(self._model.vocab.size, engine.parallel, recurrent=recurrent)
        # llama.cpp ranks one row per sequence: where guesses are verified rows come back whole.
        ranks = not self._draft_rows and _ranks(engine, on_gpu=self._on_gpu)
        ranked = range(engine.parallel + 1, slots) if ranks else range(0)
        self._rollback = drafting.rollback if drafting.on and recurrent else 0
        options = _options(engine, slots, threads, ranked, rollback=self._rollback, draft_rows=self._draft_rows)
        self._context = Context(self._model, options)
        self._threads = threads
        self._spent = 0, 0.0
        """Ubatches of this step so far, and seconds of drawing."""
        if self._rollback and self._context.rollback_rows < self._rollback:
            raise ModelError(f"llama.cpp can't take tokens back from {self._model.architecture} models: no speculation")
        self._drafting = drafting
        warmup = Warmup(self._context, self._draw)
        self._rates = warmup.rates()
        self._whole_slots = self._settle_ranking(engine, ranked, warmup)
        self._drafter = _open_drafter(drafting, self._context, path, engine, devices)
        self._vault = Vault(self._context, disk, self._drafter)
        self._row_seconds = warmup.guessed(self._depth) if self._draft_rows else {}
        self._sizes = warmup.weigh()
        self._facts = self._describe(engine, threads, time.monotonic() - began)
        self._constraints = Constraints(partial(Guidance, self._model.vocab))

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def splits_batches(self) -> bool:
        # On a GPU one decode reads the weights once for everybody. A CPU computes row by row, and rows of other
        # sequences in a chunk break its attention tiles: 64 rows and 4 decoders took 342 ms apart and 453 together.
        return self._model.recurrent or not self._on_gpu

    def run(self, plan: Plan) -> Outcome:
        began = time.perf_counter()
        results: list[DecodeResult] = []
        if plan.idle:
            self._vault.wait(DISK_WAIT)
        for operation in plan.operations:
            if self._vault.lost and not isinstance(operation, Drop | Archive | Fetch):
                continue
            if not isinstance(operation, Decode):
                self._move(operation)
            elif not results or results[-1].status is DecodeStatus.OK:
                results.append(self._decode(operation))
        moves = self._vault.take_report()
        seconds, (ubatches, host_seconds) = time.perf_counter() - began, self._spent
        self._spent = 0, 0.0
        return Outcome(tuple(results), seconds, moves, ubatches, host_seconds, self._context.highest_cell)

    def spare(self, cores: int) -> None:
        # A drafting model's few rows are left alone: it is small, and seldom runs on a CPU.
        self._context.set_threads(max(1, self._threads - cores))

    def _move(self, operation: Trim | Fork | Settle | Save | Restore | Drop | Archive | Fetch) -> None:
        match operation:
            case Trim(slot, length):
                self._context.trim(slot, length)
                if self._drafter is not None:
                    self._drafter.trim(slot, length)
            case Fork(source, target, length):
                self._context.fork(source, target, length)
                if self._drafter is not None:
                    self._drafter.fork(source, target, length)
            case Settle(slot):
                self._context.settle(slot)
            case Save(slot, key, whole):
                self._vault.save(slot, key, whole=whole)
            case Restore(slot, key):
                self._vault.restore(slot, key)
            case Drop(key):
                self._vault.drop(key)
            case Archive():
                self._vault.archive(operation)
            case Fetch():
                self._vault.fetch(operation)
            case _:
                assert_never(operation)

    @property
    def whole_slots(self) -> int | None:
        return self._whole_slots

    @property
    def open_grammar(self) -> Callable[[Constraint], Matcher]:
        return self._constraints.open

    @property
    def draft_rows(self) -> int:
        return self._draft_rows

    @property
    def row_seconds(self) -> dict[int, float]:
        return self._row_seconds

    def draft(self, asks: Sequence[Ask]) -> Drafts:
        if self._drafter is None:
            return NO_DRAFTS
        began = time.perf_counter()
        tokens = self._drafter.draft(asks)
        return Drafts(tokens, time.perf_counter() - began)

    def archived(self) -> list[Kept]:
        return self._vault.archived()

    def close(self) -> None:
        self._vault.close(FLUSH_SECONDS)
        self._constraints.close()
        if self._drafter is not None:
            self._drafter.close()
        self._context.close()
        self._model.close()

    def _decode(self, decode: Decode) -> DecodeResult:
        began = time.perf_counter()
        rows = [self._add(span) for span in decode.spans]
        status = self._context.decode()
        if status is not DecodeStatus.OK:
            return DecodeResult(status, ((),) * len(rows), (0,) * len(rows))
        if any(span.draw is not None for span in decode.spans):
            # The first row that is read would wait just the same; so it isn't taken for time that drawing takes.
            self._context.wait()
        computed = time.perf_counter()
        pairs = [self._verify(span, row) for span, row in zip(decode.spans, rows, strict=True)]
        ubatches, host_seconds = self._spent
        self._spent = ubatches + self._context.ubatches, host_seconds + time.perf_counter() - computed
        drawn, kept = zip(*pairs, strict=True)
        # At once: a recurrent state can be rolled back only until anything else is computed.
        for span, count in zip(decode.spans, kept, strict=True):
            if count < span.rows:
                self._context.trim(span.slot, span.start + count)
        seconds = time.perf_counter() - began
        return DecodeResult(status, drawn, kept, seconds, self._follow(decode, kept))

    def _follow(self, decode: Decode, kept: Sequence[int]) -> float:
        """Let the model that drafts keep up; seconds."""
        if self._drafter is None:
            return 0.0
        began = time.perf_counter()
        self._drafter.follow(decode, kept)
        return time.perf_counter() - began

    def _add(self, span: Span) -> int:
        """Put a span's rows in the batch; the row of the last token that is no guess."""
        guesses = len(span.guesses)
        tokens = span.ahead[span.start :] if guesses else span.tokens
        wanted = span.draw is not None
        return self._context.add(span.slot, tokens, span.start, logits=wanted, outputs=1 + guesses) - guesses

    def _verify(self, span: Span, row: int) -> tuple[tuple[Drawn, ...], int]:
        if span.draw is None:
            return (), span.rows
        if not len(span.guesses):
            return (self._draw(span.slot, row, span.draw),), span.rows
        return verify(span, lambda at, draw: self._draw(span.slot, row + at, draw))

    def _draw(self, slot: int, row: int, draw: Draw) -> Drawn:
        if slot not in self._context.ranking:
            return draw_token(self._context.logits(row), draw)
        ids, logits = self._context.ranking.candidates(row)
        return draw_candidates(ids, logits, draw) or Drawn(UNDECIDED)

    def _settle_ranking(self, engine: Engine, ranked: range, warmup: Warmup) -> int | None:
        """Take the ranking off again where it makes decodes slower; the number of slots with whole rows."""
        if not ranked:
            return None
        if engine.device_top_k == "auto" and not warmup.ranking_pays(ranked.start):
            self._context.ranking.close()
            return None
        return ranked.start

    @property
    def _depth(self) -> int:
        """The most tokens of one sequence that can be guessed at once."""
        most = self._rollback if self._model.recurrent else self._draft_rows
        return min(most, self._drafting.depth or most)

    @property
    def _drafters(self) -> tuple[str, ...]:
        model = (self._drafter.name,) if self._drafter is not None else ()
        return (("ngram",) if self._drafting.ngram else ()) + model

    def _describe(self, engine: Engine, threads: int, seconds: float) -> ModelFacts:
        model, build = self._model, build_info()
        rate, decode_seconds = self._rates
        return ModelFacts(
            architecture=model.architecture,
            description=model.description,
            parameters=model.parameters,
            bytes=model.size,
            layers=model.layers,
            vocabulary=model.vocab.size,
            context_train=model.context_train,
            context=min(self._context.n_ctx_seq, model.context_train),
            slots=engine.parallel,
            kv_type=engine.kv_type,
            recurrent=model.recurrent,
            sliding_window=model.sliding_window,
            devices=model.devices,
            threads=threads,
            llama_build=f"{build.version} {build.commit}",
            load_seconds=seconds,
            warmup_prefill_rate=rate,
            warmup_decode_seconds=decode_seconds,
            cells=self._context.n_ctx,
            cell_bytes=self._sizes[0],
            state_bytes=self._sizes[1],
            drafters=self._drafters,
            draft_depth=self._depth,
        )


def _open_drafter(
    drafting: Drafting, target: Context, path: Path, engine: Engine, devices: tuple[tuple[str, Any], ...]
) -> ModelDrafter | None:
    """The model that drafts for that at `path`, if there is to be one."""
    # All of it: where the model's last layer is there is room for it, or the fit has given it up.
    layers = -1
    if drafting.mtp:
        head = None if drafting.mtp == str(path) else Path(drafting.mtp)
        return MtpDrafter(target, head=head, n_gpu_layers=layers, devices=devices)
    if drafting.draft:
        asks = engine.parallel
        return DraftModelDrafter(Path(drafting.draft), target, asks=asks, n_gpu_layers=layers, devices=devices)
    return None


def _ranks(engine: Engine, *, on_gpu: bool) -> bool:
    return engine.device_top_k == "on" or (engine.device_top_k == "auto" and on_gpu)


def _options(
    engine: Engine, slots: int, threads: int, ranked: range, *, rollback: int, draft_rows: int
) -> ContextOptions:
    return ContextOptions(
        n_ctx=engine.context,
        n_batch=engine.n_batch,
        n_ubatch=engine.n_ubatch,
        slots=slots,
        threads=threads,
        kv_type=engine.kv_type,
        flash_attention=engine.flash_attention,
        unified=engine.kv_layout == "unified",
        rollback_rows=rollback,
        draft_rows=draft_rows,
        ranked_slots=ranked,
        candidates=CANDIDATES,
    )
