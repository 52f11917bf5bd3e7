"""A context of a model's next-token (MTP) head: rows are tokens together with a hidden state.

The row at position p takes the token at p and the hidden state of p − 1, and its logits are of the token at p + 1. One
layer of attention, so it can be cut anywhere. Positions are the caller's affair: M-RoPE models accept gaps, and a row
whose earlier rows are missing is computed without complaint and guesses worse. Shares a model's weights, never its
memory.
"""

import ctypes
from typing import Any

import numpy as np

from forgelm.errors import ModelError
from forgelm.llama.batch import Batch, Tokens
from forgelm.llama.context import Bytes, ContextOptions, Logits, base_parameters, bytes_pointer
from forgelm.llama.lib import L, forget_problems, last_problem
from forgelm.llama.model import Model
from forgelm.llama.nextn import States, enable_states, read_states, state_width
from forgelm.llama.status import DecodeStatus


class HeadContext:
    """Memory and compute of the head of `model`."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        """`options` are the model's context's own: the head needs as many cells and slots, and no states to roll back
        to. Raises `ModelError` where there is no head, or no memory."""
        # llama.cpp would abort the process.
        if not model.has_head:
            raise ModelError("the model was loaded without a next-token head")
        self.model = model
        forget_problems()
        self._handle: Any = L.llama_init_from_model(model.handle, _parameters(options))
        if not self._handle:
            raise ModelError(f"no context for the next-token head could be made: {last_problem() or 'out of memory'}")
        self._memory = L.llama_get_memory(self._handle)
        self.width = state_width(model.handle)
        self.batch = Batch(L.llama_n_batch(self._handle))
        self._states = np.zeros((self.batch.capacity, self.width), np.float32)
        self.batch.handle.embd = ctypes.cast(self._states.ctypes.data, ctypes.POINTER(ctypes.c_float))
        self._row_type = ctypes.c_float * model.vocab.size
        enable_states(self._handle)

    def close(self) -> None:
        """Free memory and compute buffers. Harmless when called again."""
        if self._handle:
            L.llama_free(self._handle)
            self._handle = None

    def add(self, slot: int, tokens: Tokens, states: States, start: int, *, logits: bool) -> int:
        """Append rows to the batch; returns the batch row of the last one. `states`, shape (n, width), are copied.

        Raises `ValueError` when the batch is full.
        """
        begin = self.batch.size
        last = self.batch.add(slot, tokens, start, outputs=int(logits))
        self._states[begin : last + 1] = states
        return last

    def decode(self) -> DecodeStatus:
        """Run the batch and clear it. After a status that `taints` its slots must be wiped."""
        status = DecodeStatus.from_code(L.llama_decode(self._handle, self.batch.handle))
        self.batch.clear()
        return status

    def logits(self, row: int) -> Logits:
        """Logits of a batch row of the last decode, shape (vocabulary,), a view valid until the next decode."""
        pointer = L.llama_get_logits_ith(self._handle, row)
        if not pointer:
            raise ValueError(f"row {row} of the last batch has no logits")
        memory: Any = self._row_type.from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(memory, np.float32)

    def state(self, row: int) -> States:
        """The head's own hidden state of a batch row of the last decode, shape (width,), a view valid until the next
        one: what it takes in place of the model's for the row after a guess."""
        states: States = read_states(self._handle, row + 1, self.width)[row]
        return states

    def cut(self, slot: int, length: int) -> None:
        """Forget the positions of `slot` from `length`."""
        L.llama_memory_seq_rm(self._memory, slot, length, -1)

    def fork(self, source: int, target: int, length: int) -> None:
        """Make the empty slot `target` share what `source` has before position `length`."""
        L.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def save(self, slot: int) -> Bytes:
        """All that is held of `slot`, shape (bytes,), opaque."""
        data = np.empty(L.llama_state_seq_get_size_ext(self._handle, slot, 0), np.uint8)
        written = L.llama_state_seq_get_data_ext(self._handle, bytes_pointer(data), len(data), slot, 0)
        return data[:written]

    def restore(self, slot: int, data: Bytes) -> bool:
        """Load into the empty `slot` what was saved; says whether there was room. The slot is empty otherwise."""
        read = L.llama_state_seq_set_data_ext(self._handle, bytes_pointer(data), len(data), slot, 0)
        if read != len(data):
            self.cut(slot, 0)
        return bool(read == len(data))


def _parameters(options: ContextOptions) -> Any:
    params = base_parameters(options)
    params.ctx_type = L.LLAMA_CONTEXT_TYPE_MTP
    params.n_outputs_max = options.slots
    params.n_outputs_max_per_seq = 1
    # In a pool of each slot's own nothing could be forked.
    params.kv_unified = True
    return params
