"""llama.cpp without the wrapper: what a caller of the bare C API gets, rules kept or broken.

The references of these tests are computed here, and so are the wrong answers that `Context` refuses to give. Nothing
here uses `Context` or `Batch`.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forgelm.llama.lib import L

Logits = npt.NDArray[np.float32]

CAPACITY = 1024
SLOTS = 8
PARTIAL = L.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Row(NamedTuple):
    """One row of a batch."""

    slot: int
    position: int
    token: int
    logits: bool = False


def rows(slot: int, tokens: Sequence[int], start: int = 0) -> list[Row]:
    """Consecutive rows; logits are asked of the last."""
    last = len(tokens) - 1
    return [Row(slot, start + at, int(token), at == last) for at, token in enumerate(tokens)]


class Raw:
    """One bare context. Positions are the caller's affair, and so is every mistake."""

    def __init__(self, model: Any, **parameters: Any) -> None:
        """`parameters` are fields of `llama_context_params`, laid over small sizes and a unified cache."""
        params = L.llama_context_default_params()
        defaults = {"n_ctx": 2048, "n_batch": CAPACITY, "n_ubatch": 512, "n_seq_max": SLOTS, "n_outputs_max": 16}
        threads = {"n_threads": 1, "n_threads_batch": 1}
        for name, value in {**defaults, **threads, "kv_unified": True, **parameters}.items():
            setattr(params, name, value)
        self.handle = L.llama_init_from_model(model, params)
        self.memory = L.llama_get_memory(self.handle)
        self.vocabulary = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self._batch = L.llama_batch_init(CAPACITY, 0, 1)

    def close(self) -> None:
        L.llama_batch_free(self._batch)
        L.llama_free(self.handle)

    def decode(self, *parts: Sequence[Row]) -> int:
        """`llama_decode` of the rows of all `parts`; its status."""
        batch, count = self._batch, 0
        for row in (row for part in parts for row in part):
            batch.token[count], batch.pos[count] = row.token, row.position
            batch.n_seq_id[count], batch.seq_id[count][0] = 1, row.slot
            batch.logits[count] = row.logits
            count += 1
        batch.n_tokens = count
        return int(L.llama_decode(self.handle, batch))

    def logits(self, row: int = -1) -> Logits:
        """A copy of the logits of a batch row; −1 is the last row that asked for any."""
        pointer = L.llama_get_logits_ith(self.handle, row)
        return np.ctypeslib.as_array(pointer, (self.vocabulary,)).copy()

    def run(self, slot: int, tokens: Sequence[int], start: int = 0) -> Logits:
        """Decode rows of one sequence, which must succeed; the last one's logits."""
        assert self.decode(rows(slot, tokens, start)) == 0
        return self.logits()

    def cut(self, slot: int, length: int) -> bool:
        """`seq_rm` of everything from position `length`."""
        return bool(L.llama_memory_seq_rm(self.memory, slot, length, -1))

    def copy(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        L.llama_memory_seq_cp(self.memory, source, target, start, end)

    def last_position(self, slot: int) -> int:
        return int(L.llama_memory_seq_pos_max(self.memory, slot))

    def save(self, slot: int, flags: int) -> bytes:
        size = L.llama_state_seq_get_size_ext(self.handle, slot, flags)
        buffer = (ctypes.c_uint8 * size)()
        assert L.llama_state_seq_get_data_ext(self.handle, buffer, size, slot, flags) == size
        return bytes(buffer)

    def restore(self, slot: int, data: bytes, flags: int) -> int:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        return int(L.llama_state_seq_set_data_ext(self.handle, buffer, len(data), slot, flags))


@contextmanager
def raw(model: Any, **parameters: Any) -> Iterator[Raw]:
    """A bare context for as long as the block lasts."""
    context = Raw(model, **parameters)
    try:
        yield context
    finally:
        context.close()


def from_scratch(model: Any, tokens: Sequence[int], **parameters: Any) -> Logits:
    """The reference: logits after `tokens`, in one decode of a fresh context."""
    with raw(model, **parameters) as context:
        return context.run(0, tokens)


def greedy(model: Any, prompt: Sequence[int], count: int, **parameters: Any) -> list[int]:
    """llama.cpp's own single-sequence output: the prompt in one decode, then the argmax `count` times."""
    with raw(model, **parameters) as context:
        logits, answer, length = context.run(0, prompt), [], len(prompt)
        while True:
            answer.append(int(logits.argmax()))
            if len(answer) == count:
                return answer
            logits = context.run(0, answer[-1:], length)
            length += 1
