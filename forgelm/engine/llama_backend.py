"""The backend that computes: plans carried out by llama.cpp."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import numpy as np

from forgelm.config import Engine
from forgelm.engine.placement import place
from forgelm.engine.plan import Decode, DecodeResult, Fork, Outcome, Plan, Restore, Save, Trim
from forgelm.engine.sampling import draw_token
from forgelm.ipc.messages import ModelFacts
from forgelm.llama.context import Checkpoint, Context, ContextOptions
from forgelm.llama.devices import list_devices
from forgelm.llama.lib import build_info
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from forgelm.machine import read_machine

WARMUP_ROWS = 64
"""Rows of the warm-up's timed chunk: enough to be compute-bound, short on a slow CPU."""


class LlamaBackend:
    """A model and one context, for as long as the engine process lives."""

    def __init__(self, path: Path, engine: Engine, threads: int, progress: Callable[[float], bool]) -> None:
        """Load and warm up. Raises `ModelError` or `MachineError` with one line."""
        began = time.monotonic()
        cards = place(engine, read_machine(), list_devices())
        self._on_gpu = bool(cards)
        self._model = Model.load(
            path,
            n_gpu_layers=engine.n_gpu_layers,
            devices=tuple((card.name, card.handle) for card in cards),
            progress=progress,
        )
        self._context = Context(self._model, _options(engine, threads))
        self._checkpoints: dict[int, Checkpoint] = {}
        self._warmup = self._warm_up()
        self._facts = self._describe(engine, threads, time.monotonic() - began)

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
        for operation in plan.operations:
            match operation:
                case Decode():
                    if not results or results[-1].status is DecodeStatus.OK:
                        results.append(self._decode(operation))
                case Trim(slot, length):
                    self._context.trim(slot, length)
                case Fork(source, target, length):
                    self._context.fork(source, target, length)
                case Save(slot, key):
                    self._checkpoints[key] = self._context.save(slot)
                case Restore(slot, key):
                    self._context.restore(slot, self._checkpoints[key])
                case _:
                    assert_never(operation)
        return Outcome(tuple(results), time.perf_counter() - began)

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def _decode(self, decode: Decode) -> DecodeResult:
        context = self._context
        rows = [context.add(span.slot, span.tokens, span.start, logits=span.draw is not None) for span in decode.spans]
        status = context.decode()
        if status is not DecodeStatus.OK:
            return DecodeResult(status, (None,) * len(rows))
        tokens = (
            None if span.draw is None else draw_token(context.logits(row), span.draw)
            for span, row in zip(decode.spans, rows, strict=True)
        )
        return DecodeResult(status, tuple(tokens))

    def _warm_up(self) -> tuple[float, float]:
        """Touch weights and buffers; returns a chunk's tokens per second and the seconds of a decode of one row."""
        rows = min(WARMUP_ROWS, self._context.n_ubatch)
        self._time_rows(1)
        return rows / self._time_rows(rows), self._time_rows(1)

    def _time_rows(self, rows: int) -> float:
        tokens = np.arange(rows, dtype=np.int32) % self._model.vocab.size
        began = time.perf_counter()
        row = self._context.add(0, tokens, 0, logits=True)
        self._context.decode()
        self._context.logits(row)
        seconds = time.perf_counter() - began
        self._context.trim(0, 0)
        return seconds

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
            context=min(self._context.n_ctx, model.context_train),
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
        )


def _options(engine: Engine, threads: int) -> ContextOptions:
    return ContextOptions(
        n_ctx=engine.context,
        n_batch=engine.n_batch,
        n_ubatch=engine.n_ubatch,
        slots=engine.parallel,
        threads=threads,
        kv_type=engine.kv_type,
        flash_attention=engine.flash_attention,
    )
