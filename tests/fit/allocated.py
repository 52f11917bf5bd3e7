"""What llama.cpp says that it allocates, from its own log."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from forgelm.fit.compute import Sizes
from forgelm.llama import lib
from forgelm.llama.context import KV_TYPES
from forgelm.llama.lib import L

MIB = 2**20
_BUFFER = re.compile(r"\S+ +(model|output|RS|compute) buffer size = +([\d.]+) MiB")
_CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB")


class Allocated(NamedTuple):
    """Bytes by part, summed over buffers."""

    model: int = 0
    cache: int = 0
    states: int = 0
    compute: int = 0
    outputs: int = 0


@contextmanager
def loaded(path: Path, *, dry: bool, head: bool = False) -> Iterator[tuple[Any, Allocated]]:
    """A model on the CPU, and what its weights took; a dry one has none and reads nothing but the header.
    `head`: with its next-token head."""
    params = L.llama_model_default_params()
    devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.n_gpu_layers = 0
    params.no_alloc = dry
    params.load_mtp = head
    if dry:
        params.load_mode = L.LLAMA_LOAD_MODE_NONE
    with _said() as lines:
        handle = L.llama_model_load_from_file(str(path).encode(), params)
        assert handle, "".join(lines)
        sizes = _sizes(lines)
    yield handle, sizes
    L.llama_model_free(handle)


def context(model: Any, sizes: Sizes) -> Allocated:
    """What a context of `sizes` takes: made, asked and freed."""
    params = _params(sizes)
    params.n_rs_seq = sizes.rollback
    params.n_outputs_max = sizes.outputs
    params.n_outputs_max_per_seq = 1 + max(sizes.rollback, sizes.guessed)
    return _made(model, params)


def head_context(model: Any, sizes: Sizes) -> Allocated:
    """What the context of a next-token head takes beside a model's of `sizes`."""
    params = _params(sizes)
    params.ctx_type = L.LLAMA_CONTEXT_TYPE_MTP
    params.n_outputs_max = sizes.sequences
    params.n_outputs_max_per_seq = 1
    return _made(model, params)


def _params(sizes: Sizes) -> Any:
    params = L.llama_context_default_params()
    params.n_ctx = sizes.cells
    params.n_batch = params.n_ubatch = sizes.micro_batch
    params.n_seq_max = sizes.sequences
    params.type_k = params.type_v = KV_TYPES[sizes.kv_type]
    params.flash_attn_type = 1 if sizes.flash else 0
    params.kv_unified = params.swa_full = params.no_perf = True
    return params


def _made(model: Any, params: Any) -> Allocated:
    with _said() as lines:
        handle = L.llama_init_from_model(model, params)
        assert handle, "".join(lines)
        found = _sizes(lines)
    L.llama_free(handle)
    return found


def _sizes(lines: list[str]) -> Allocated:
    text = "".join(lines)
    found = {"model": 0.0, "output": 0.0, "RS": 0.0, "compute": 0.0}
    for part, size in _BUFFER.findall(text):
        found[part] += float(size)
    cache = sum(map(float, _CACHE.findall(text)))
    parts = (found["model"], cache, found["RS"], found["compute"], found["output"])
    return Allocated(*(int(size * MIB) for size in parts))


@contextmanager
def _said() -> Iterator[list[str]]:
    """Everything llama.cpp logs meanwhile."""
    lib.start()
    lines: list[str] = []

    @L.llama_log_callback
    def listen(_: int, text: bytes, __: object) -> None:
        lines.append(text.decode("utf-8", "replace"))

    L.llama_log_set(listen, None)
    try:
        yield lines
    finally:
        assert lib._log is not None
        L.llama_log_set(lib._log.callback, None)
