"""The backend that computes: plans carried out by llama.cpp."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import assert_never

import numpy as np

from forgelm.config import FLUSH_SECONDS, Cache, Engine
from forgelm.engine.constraint import Constraints
from forgelm.engine.disk import DiskTier
from forgelm.engine.placement import place
from forgelm.engine.plan import (
    CANDIDATES,
    UNDECIDED,
    Archive,
    Decode,
    DecodeResult,
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
    Trim,
)
from forgelm.engine.prefix import Kept
from forgelm.engine.sampling import draw_candidates, draw_token
from forgelm.engine.vault import Vault
from forgelm.ipc.messages import Constraint, ModelFacts, Sampling
from forgelm.llama.context import Context, ContextOptions
from forgelm.llama.devices import list_devices
from forgelm.llama.guidance import Guidance
from forgelm.llama.lib import build_info
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from forgelm.machine import read_machine

WARMUP_ROWS = 64
"""Rows of the warm-up's timed chunk: enough to be compute-bound, short on a slow CPU."""

RANKING_PAIRS = 8
"""Decodes with and without ranking that are compared at the start."""
GREEDY = Draw(Sampling(temperature=0.0), 0, 0, np.empty(0, np.int32))

NO_CACHE = Cache(prefix_cache=False)
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
    ) -> None:
        """Load and warm up. `disk` is closed with the backend. Raises `ModelError` or `MachineError` with one line."""
        began = time.monotonic()
        cards = place(engine, read_machine(), list_devices())
        self._on_gpu = bool(cards)
        self._model = Model.load(
            path,
            n_gpu_layers=engine.n_gpu_layers,
            devices=tuple((card.name, card.handle) for card in cards),
            progress=progress,
        )
        slots = engine.parallel + cache.kept_sequences(engine.parallel, recurrent=self._model.recurrent)
        ranked = range(engine.parallel + 1, slots) if _ranks(engine, on_gpu=self._on_gpu) else range(0)
        self._context = Context(self._model, _options(engine, slots, threads, ranked))
        self._vault = Vault(self._context, disk)
        self._warmup = self._warm_up()
        self._whole_slots = self._settle_ranking(engine, ranked)
        self._sizes = self._weigh()
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
        return Outcome(tuple(results), time.perf_counter() - began, moves)

    def _move(self, operation: Trim | Fork | Save | Restore | Drop | Archive | Fetch) -> None:
        match operation:
            case Trim(slot, length):
                self._context.trim(slot, length)
            case Fork(source, target, length):
                self._context.fork(source, target, length)
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

    def archived(self) -> list[Kept]:
        return self._vault.archived()

    def close(self) -> None:
        self._vault.close(FLUSH_SECONDS)
        self._constraints.close()
        self._context.close()
        self._model.close()

    def _decode(self, decode: Decode) -> DecodeResult:
        context = self._context
        rows = [context.add(span.slot, span.tokens, span.start, logits=span.draw is not None) for span in decode.spans]
        status = context.decode()
        if status is not DecodeStatus.OK:
            return DecodeResult(status, (None,) * len(rows))
        drawn = (
            None if span.draw is None else self._draw(span.slot, row, span.draw)
            for span, row in zip(decode.spans, rows, strict=True)
        )
        return DecodeResult(status, tuple(drawn))

    def _draw(self, slot: int, row: int, draw: Draw) -> Drawn:
        if slot not in self._context.ranking:
            return draw_token(self._context.logits(row), draw)
        ids, logits = self._context.ranking.candidates(row)
        return draw_candidates(ids, logits, draw) or Drawn(UNDECIDED)

    def _warm_up(self) -> tuple[float, float]:
        """Touch weights and buffers; returns a chunk's tokens per second and the seconds of a decode of one row."""
        rows = min(WARMUP_ROWS, self._context.n_ubatch)
        self._time_rows(1)
        return rows / self._time_rows(rows), self._time_rows(1)

    def _settle_ranking(self, engine: Engine, ranked: range) -> int | None:
        """Take the ranking off again where it makes decodes slower; the number of slots with whole rows."""
        if not ranked:
            return None
        pairs = [(self._time_rows(1), self._time_rows(1, ranked.start)) for _ in range(RANKING_PAIRS)]
        if engine.device_top_k == "auto" and median(with_ - without for without, with_ in pairs) > 0:
            self._context.ranking.close()
            return None
        return ranked.start

    def _time_rows(self, rows: int, slot: int = 0) -> float:
        """Seconds of a decode whose last row is drawn from."""
        tokens = np.arange(rows, dtype=np.int32) % self._model.vocab.size
        began = time.perf_counter()
        row = self._context.add(slot, tokens, 0, logits=True)
        self._context.decode()
        self._draw(slot, row, GREEDY)
        seconds = time.perf_counter() - began
        self._context.trim(slot, 0)
        return seconds

    def _weigh(self) -> tuple[float, int]:
        """Bytes that a token's keys and values take when saved, and bytes of a recurrent state."""
        rows = min(WARMUP_ROWS, self._context.n_ubatch)
        self._context.add(0, np.arange(rows, dtype=np.int32) % self._model.vocab.size, 0, logits=False)
        self._context.decode()
        state = len(self._context.save(0).data) if self._model.recurrent else 0
        whole = len(self._context.save(0, whole=True).data)
        self._context.trim(0, 0)
        return (whole - state) / rows, state

    def _describe(self, engine: Engine, threads: int, seconds: float) -> ModelFacts:
        model, build = self._model, build_info()
        rate, decode_seconds = self._warmup
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
        )


def _ranks(engine: Engine, *, on_gpu: bool) -> bool:
    return engine.device_top_k == "on" or (engine.device_top_k == "auto" and on_gpu)


def _options(engine: Engine, slots: int, threads: int, ranked: range) -> ContextOptions:
    return ContextOptions(
        n_ctx=engine.context,
        n_batch=engine.n_batch,
        n_ubatch=engine.n_ubatch,
        slots=slots,
        threads=threads,
        kv_type=engine.kv_type,
        flash_attention=engine.flash_attention,
        unified=engine.kv_layout == "unified",
        ranked_slots=ranked,
        candidates=CANDIDATES,
    )
