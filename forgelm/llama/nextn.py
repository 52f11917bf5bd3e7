"""Hidden states: what a model's last layer computed for each row, from which its next-token head guesses.

llama.cpp exports them outside its stable API; the bindings' module for that is loaded by whoever first asks.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.llama.context import Context
from forgelm.llama.lib import L

States = npt.NDArray[np.float32]


def enable_hidden_states(context: Context) -> None:
    """Let every decode of `context` copy its rows' hidden states to host memory: n_batch × width × 4 bytes."""
    enable_states(context._handle)


def hidden_states(context: Context, rows: int) -> States:
    """The states of the `rows` rows of the last decode, in the batch's order whatever ubatches they went in.

    Shape (rows, width); a view, valid until the next decode. Raises `ValueError` when they weren't enabled.
    """
    return read_states(context._handle, rows, state_width(context.model.handle))


def state_width(model: Any) -> int:
    """Numbers of one state."""
    return int(L.llama_model_n_embd_out(model))


def enable_states(handle: Any) -> None:
    """The same for a bare context.

    All rows, not "masked" ones: llama.cpp's graph of a head gives the states of all its rows, of which a masked copy
    takes as many as there are outputs from the start, whichever rows asked for output (qwen35.cpp: `t_h_nextn` is set
    before `inp_out_ids` is applied).
    """
    _ext().llama_set_embeddings_nextn(handle, True, False)


def read_states(handle: Any, rows: int, width: int) -> States:
    """The same for a bare context whose model has states of `width` numbers."""
    pointer = _ext().llama_get_embeddings_nextn(handle)
    if not pointer:
        raise ValueError("this context keeps no hidden states")
    memory: Any = (ctypes.c_float * (rows * width)).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(memory, np.float32).reshape(rows, width)


@cache
def _ext() -> Any:
    import llama_cpp.llama_cpp_ext as ext

    return ext
