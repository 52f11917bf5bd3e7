"""What memory operations cost on this machine: saving and loading states, and cells that nobody decodes in.

    python -m bench.memory_costs [--model PATH] [--tokens 1000]

Through the engine's own context, one process, no server. A saved text is compared with computing it again; a decode
step is timed beside ever more cached cells, and with one pool against an equal part for each sequence.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import machine
from bench.servers import default_model
from forgelm.llama.context import Context, ContextOptions
from forgelm.llama.model import Model
from forgelm.machine import read_machine

MIB = 2**20
REPEATS = 15
STEPS = 12
DECODERS = (1, 4, 8)
CACHED = (0, 1000, 2000, 4000)
SLOTS = 16


def open_context(model: Model, cells: int, *, slots: int = SLOTS, unified: bool = True) -> Context:
    threads = read_machine().cores.usable
    sizes = ContextOptions(cells, 512, 512, slots, threads, "f16", "auto", unified=unified)
    return Context(model, sizes)


def prefill(context: Context, slot: int, count: int) -> float:
    """Seconds to compute `count` tokens in `slot`."""
    tokens = np.random.default_rng(slot).integers(200, 20_000, count).astype(np.int32)
    began = time.perf_counter()
    for at in range(0, count, 256):
        context.add(slot, tokens[at : at + 256], at, logits=False)
        context.decode()
    return time.perf_counter() - began


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# --- saving and loading ---


def copies(model: Model, tokens: int) -> list[dict[str, Any]]:
    """Cost of saving and loading a text of `tokens`, whole and, on a hybrid, its recurrent part."""
    context = open_context(model, 4 * tokens + 512)
    computed = prefill(context, 0, tokens)
    rows = [_copy(context, tokens, computed, whole=True)]
    if model.recurrent:
        rows.append(_copy(context, tokens, computed, whole=False))
    context.close()
    return rows


def _copy(context: Context, tokens: int, computed: float, *, whole: bool) -> dict[str, Any]:
    state = context.save(0, whole=whole)
    saves = [timed(lambda: context.save(0, whole=whole)) for _ in range(REPEATS)]
    loads = []
    for _ in range(REPEATS):
        context.trim(1, 0)
        if state.partial:
            # Attention is shared from a longer sequence: a fork of all would bring the state along.
            context.trim(2, 0)
            context.fork(0, 2, tokens)
            context.add(2, np.array([300], np.int32), tokens, logits=False)
            context.decode()
            context.fork(2, 1, tokens)
        loads.append(timed(lambda: context.restore(1, state)))
    size, save, load = len(state.data) / MIB, median(saves), median(loads)
    return {
        "what": "whole" if whole else "recurrent part",
        "tokens": tokens,
        "mib": round(size, 2),
        "save_ms": round(save * 1e3, 2),
        "load_ms": round(load * 1e3, 2),
        "ms_per_mib": round((save + load) * 1e3 / size, 3),
        "share_of_prefill": round((save + load) / computed, 4),
    }


# --- cells in use ---


def cached_cells(model: Model) -> list[dict[str, Any]]:
    """Milliseconds of a decode step beside cells that only cached sequences hold."""
    context = open_context(model, 8192)
    prefill(context, SLOTS - 1, 500)
    filling = context.save(SLOTS - 1, whole=True)
    context.trim(SLOTS - 1, 0)
    rows = []
    for cached in CACHED:
        for slot in range(SLOTS):
            context.trim(slot, 0)
        for at in range(cached // 500):
            context.restore(SLOTS - 1 - at, filling)
        rows.append({"cached": cached, **{f"b{b}_ms": round(decode_ms(context, b), 2) for b in DECODERS}})
    context.close()
    return rows


def layouts(model: Model, tokens: int) -> list[dict[str, Any]]:
    """Milliseconds of a decode step of four texts of `tokens` each, by the layout of their cells."""
    rows = []
    for name, unified in (("unified", True), ("streams", False)):
        context = open_context(model, 4 * (tokens + 512), slots=4, unified=unified)
        prefill(context, 0, tokens)
        state = context.save(0, whole=True)
        for slot in (1, 2, 3):
            context.restore(slot, state)
        rows.append({"layout": name, "texts": 4, "tokens": tokens, "b4_ms": round(decode_ms(context, 4), 2)})
        context.close()
    return rows


def decode_ms(context: Context, sequences: int) -> float:
    """Median milliseconds of a step in which the first `sequences` slots decode one token each."""
    seconds = []
    for _ in range(STEPS):
        for slot in range(sequences):
            context.add(slot, np.array([300 + slot], np.int32), context.length(slot), logits=True)
        seconds.append(timed(context.decode))
    return median(seconds) * 1e3


def table(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(row[key]) for key in head) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of memory operations")
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--tokens", type=int, default=1000)
    arguments = parser.parse_args()
    path: Path = arguments.model or default_model()
    model = Model.load(path, n_gpu_layers=0)
    parts = {
        "copies": copies(model, arguments.tokens),
        "cached_cells": cached_cells(model),
        "layouts": layouts(model, arguments.tokens),
    }
    for name, rows in parts.items():
        print(f"\n{name}\n{table(rows)}")
    print(json.dumps({"machine": machine.describe(path), **parts}))


if __name__ == "__main__":
    main()
