"""The header of a GGUF file: its key-values and its tensors' names, types and sizes. No weights are read.

ggml's own reader does the work, so that what it accepts is what a load accepts. What the numbers mean is decided
elsewhere.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from forgelm.errors import ModelError
from forgelm.gguf.header import Header, Tensor, Value
from forgelm.llama.lib import forget_problems, last_problem, start

_ARRAY = 9
_SCALARS: dict[int, tuple[str, type[Any]]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    6: ("f32", ctypes.c_float),
    7: ("bool", ctypes.c_bool),
    8: ("str", ctypes.c_char_p),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
    12: ("f64", ctypes.c_double),
}
"""GGUF's numbers for value types, the suffix of the function that reads one, and what it returns."""
_FLOAT_OR_TEXT = (6, 8, 12)
_LONGEST = 4096
"""Elements of an array that is worth keeping: per-layer figures, but no vocabulary."""


class _Init(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def read_header(path: Path) -> Header:
    """Read it; 2 ms for a small vocabulary, tens for a large one. Raises `ModelError` in one line."""
    start()
    library = _library()
    if not path.is_file():
        raise ModelError(f"no model file at {path}")
    forget_problems()
    handle = library.gguf_init_from_file(os.fsencode(path), _Init(no_alloc=True, ctx=None))
    if not handle:
        raise ModelError(f"{path} can't be read: {last_problem() or 'ggml gave no reason'}")
    try:
        return _header(library, handle)
    finally:
        library.gguf_free(handle)


def _header(library: Any, handle: Any) -> Header:
    values: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for index in range(library.gguf_get_n_kv(handle)):
        key = library.gguf_get_key(handle, index).decode("utf-8", "replace")
        kind = library.gguf_get_kv_type(handle, index)
        if kind == _ARRAY:
            lengths[key] = library.gguf_get_arr_n(handle, index)
            numbers = _integers(library, handle, index, lengths[key])
            if numbers is not None:
                values[key] = numbers
        elif kind in _SCALARS:
            value = getattr(library, f"gguf_get_val_{_SCALARS[kind][0]}")(handle, index)
            values[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    count = library.gguf_get_n_tensors(handle)
    return Header(values, lengths, tuple(_tensor(library, handle, index) for index in range(count)))


def _integers(library: Any, handle: Any, index: int, length: int) -> tuple[int, ...] | None:
    kind = library.gguf_get_arr_type(handle, index)
    if kind not in _SCALARS or kind in _FLOAT_OR_TEXT or not 0 < length <= _LONGEST:
        return None
    array = _SCALARS[kind][1] * length
    return tuple(int(value) for value in array.from_address(library.gguf_get_arr_data(handle, index)))


def _tensor(library: Any, handle: Any, index: int) -> Tensor:
    shape = [library.gguf_get_tensor_ne(handle, index)[axis] for axis in range(4)]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return Tensor(
        library.gguf_get_tensor_name(handle, index).decode("utf-8", "replace"),
        library.ggml_type_name(library.gguf_get_tensor_type(handle, index)).decode(),
        tuple(shape),
        library.gguf_get_tensor_size(handle, index),
    )


@cache
def _library() -> Any:
    """ggml, told the types of the functions used here; the bindings declare none of them."""
    from llama_cpp._ggml import libggml as library

    handle, index = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gguf_init_from_file", handle, (ctypes.c_char_p, _Init)),
        ("gguf_free", None, (handle,)),
        ("gguf_get_n_kv", index, (handle,)),
        ("gguf_get_key", ctypes.c_char_p, (handle, index)),
        ("gguf_get_kv_type", ctypes.c_int, (handle, index)),
        ("gguf_get_arr_n", ctypes.c_size_t, (handle, index)),
        ("gguf_get_arr_type", ctypes.c_int, (handle, index)),
        ("gguf_get_arr_data", ctypes.c_void_p, (handle, index)),
        ("gguf_get_n_tensors", index, (handle,)),
        ("gguf_get_tensor_name", ctypes.c_char_p, (handle, index)),
        ("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), (handle, index)),
        ("gguf_get_tensor_type", ctypes.c_int, (handle, index)),
        ("gguf_get_tensor_size", ctypes.c_size_t, (handle, index)),
        ("ggml_type_name", ctypes.c_char_p, (ctypes.c_int,)),
        *((f"gguf_get_val_{suffix}", kind, (handle, index)) for suffix, kind in _SCALARS.values()),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
