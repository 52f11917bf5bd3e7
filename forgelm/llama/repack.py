"""Which weights llama.cpp copies into a layout of the CPU's own when it loads them, and how large the copies are.

The copies are ordinary memory; the pages of the file they were made from stay mapped, and the kernel drops them when
it needs room. Read from the kernels' own conditions (ggml/src/ggml-cpu/repack.cpp and amx/), for x86-64 and arm64.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from math import prod

from forgelm.llama.gguf import Tensor
from forgelm.llama.lib import L, start

CopySize = Callable[[Tensor], int]
"""Bytes of the copy of a weight; 0 when there is none."""

# Type → weights in a block, bytes that AMX's layout adds to one.
_AMX = {
    "q4_0": (32, 0), "q4_1": (32, 0), "q8_0": (32, 4),
    "q4_K": (256, 4), "q5_K": (256, 4), "q6_K": (256, 0), "iq4_xs": (256, 2),
}  # fmt: skip
# llama.cpp's name of a CPU feature → types repacked where the CPU has it, and the rows that go together.
_REPACKED = {
    "AVX2": (("q4_0", "q4_K", "iq4_nl", "mxfp4"), 8),
    "AVX512": (("q2_K",), 8),
    "DOTPROD": (("q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "mxfp4"), 8),
}


def copy_size(buffers: tuple[str, ...], features: str) -> CopySize:
    """How this machine's llama.cpp copies; `buffers` and `features` are what `extra_buffers` and llama.cpp say."""
    rows_by_type = {
        kind: rows for feature, (kinds, rows) in _REPACKED.items() if f" {feature} = 1" in features for kind in kinds
    }

    def size(tensor: Tensor) -> int:
        if len(tensor.shape) == 1:
            return 0
        if "AMX" in buffers and _amx_takes(tensor):
            block, more = _AMX.get(tensor.type, (1, 0))
            return tensor.bytes + more * (prod(tensor.shape) // block)
        rows = rows_by_type.get(tensor.type, 0) if "CPU_REPACK" in buffers else 0
        return tensor.bytes if rows and tensor.shape[1] % rows == 0 else 0

    return size


def _amx_takes(tensor: Tensor) -> bool:
    block = 16 if tensor.type == "f16" else _AMX.get(tensor.type, (0, 0))[0]
    return bool(block) and len(tensor.shape) == 2 and tensor.shape[0] % block == 0 and tensor.shape[1] % 32 == 0


def installed_copy_size() -> CopySize:
    """The same for the library this process runs."""
    return copy_size(extra_buffers(), L.llama_print_system_info().decode())


@cache
def extra_buffers() -> tuple[str, ...]:
    """Names of the CPU's extra buffer types, such as "AMX" and "CPU_REPACK", in the order they are tried."""
    start()
    from llama_cpp._ggml import libggml

    pointer = ctypes.c_void_p
    libggml.ggml_backend_dev_by_type.restype = pointer
    libggml.ggml_backend_dev_backend_reg.restype = pointer
    libggml.ggml_backend_dev_backend_reg.argtypes = [pointer]
    libggml.ggml_backend_reg_get_proc_address.restype = pointer
    libggml.ggml_backend_reg_get_proc_address.argtypes = [pointer, ctypes.c_char_p]
    libggml.ggml_backend_buft_name.restype = ctypes.c_char_p
    libggml.ggml_backend_buft_name.argtypes = [pointer]
    device = libggml.ggml_backend_dev_by_type(0)
    registry = libggml.ggml_backend_dev_backend_reg(device)
    address = libggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return ()
    types = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
    names: list[str] = []
    while types[len(names)]:
        names.append(libggml.ggml_backend_buft_name(types[len(names)]).decode())
    return tuple(names)
