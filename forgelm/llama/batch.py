"""The rows of one decode, in NumPy arrays made once.

Knows nothing of sequences' histories; `Context` checks the positions.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.llama.lib import L

Tokens = npt.NDArray[np.int32]


class Batch:
    """Up to `capacity` rows, one sequence id each. The arrays are NumPy's; llama.cpp reads them where they lie."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._slot = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._slots_per_row = np.ones(capacity, np.int32)
        # llama.cpp wants a pointer per row; all of them point into one array, so setting ids is one slice.
        self._slot_pointers = (self._slot.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)).astype(np.uint64)
        self.handle: Any = L.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._pos, ctypes.c_int32),
            n_seq_id=_pointer(self._slots_per_row, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._logits, ctypes.c_int8),
        )
        self.size = 0
        self.counts: dict[int, int] = {}
        """Rows of each slot that has any."""
        self.outputs = 0
        """Rows whose logits are asked for."""

    def clear(self) -> None:
        """Drop all rows. A decode of nothing is then `INVALID`, not the last batch once more."""
        self.size = self.outputs = self.handle.n_tokens = 0
        self.counts.clear()

    def add(self, slot: int, tokens: Tokens, start: int, *, outputs: int) -> int:
        """Append `tokens` of sequence `slot` at positions from `start`; returns the row of the last one.

        `outputs` asks for the logits of so many last rows. Raises `ValueError` when the batch is full or there are no
        tokens.
        """
        count = len(tokens)
        begin, end = self.size, self.size + count
        if not begin < end <= self.capacity:
            raise ValueError(f"a batch of {self.capacity} rows that holds {begin} can't take {count}")
        self._token[begin:end] = tokens
        self._slot[begin:end] = slot
        self._logits[begin : end - outputs] = 0
        self._logits[end - outputs : end] = 1
        if count == 1:
            self._pos[begin] = start
        else:
            self._pos[begin:end] = np.arange(start, start + count, dtype=np.int32)
        self.outputs += outputs
        self.size = self.handle.n_tokens = end
        self.counts[slot] = self.counts.get(slot, 0) + count
        return end - 1


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
