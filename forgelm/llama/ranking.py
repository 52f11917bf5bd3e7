"""Top-k in the compute graph: slots whose rows come back as their highest logits alone.

One chain of `top_k` is attached to each such slot when the context is made and never changed: attaching makes llama.cpp
reserve its graphs again. What is drawn from the candidates is the engine's business.
"""

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.errors import ModelError
from forgelm.llama.lib import L

Candidates = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Token ids and logits, shape (k,) each, in no order."""


class Ranking:
    """The samplers of one context."""

    def __init__(self, context: Any, slots: Iterable[int], k: int) -> None:
        """Raises `ModelError` when the device can't do it."""
        self._context = context
        self._chains: dict[int, Any] = {}
        for slot in slots:
            chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
            self._chains[slot] = chain
            L.llama_sampler_chain_add(chain, L.llama_sampler_init_top_k(k))
            if not L.llama_set_sampler(context, slot, chain):
                self.close()
                raise ModelError("this device can't rank logits in the graph")

    def __contains__(self, slot: int) -> bool:
        return slot in self._chains

    def close(self) -> None:
        """Take the samplers off; the slots give whole rows then. Harmless when called again."""
        while self._chains:
            slot, chain = self._chains.popitem()
            L.llama_set_sampler(self._context, slot, None)
            L.llama_sampler_free(chain)

    def candidates(self, row: int) -> Candidates:
        """The highest logits of a batch row of the last decode, copied. Raises `ValueError` for a row without any."""
        count = L.llama_get_sampled_candidates_count_ith(self._context, row)
        if not count or count != L.llama_get_sampled_logits_count_ith(self._context, row):
            raise ValueError(f"row {row} of the last batch has no candidates")
        ids = L.llama_get_sampled_candidates_ith(self._context, row)
        logits = L.llama_get_sampled_logits_ith(self._context, row)
        return _copy(ids, ctypes.c_int32, np.int32, count), _copy(logits, ctypes.c_float, np.float32, count)


def _copy(pointer: Any, kind: Any, dtype: Any, count: int) -> npt.NDArray[Any]:
    memory: Any = (kind * count).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(memory, dtype).copy()
