"""The GPUs this build of llama.cpp can use. Which of them a model goes on is not decided here."""

import ctypes
from dataclasses import dataclass
from typing import Any

from forgelm.llama.lib import start

_GPU, _INTEGRATED_GPU = 1, 2


class _Props(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_bool * 4),
    ]


@dataclass(frozen=True)
class Device:
    """One GPU as ggml sees it."""

    handle: Any
    name: str
    """ggml's name, such as "CUDA0"."""
    description: str
    free: int
    """Bytes."""
    total: int
    bus_id: str
    """Lower-case PCI bus id `0000:c1:00.0`; "" when unknown."""


def list_devices() -> tuple[Device, ...]:
    """Every GPU of this process's llama.cpp; empty on a CPU build."""
    start()
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_dev_get_props.restype = None
    libggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Props)]
    found: list[Device] = []
    for index in range(libggml.ggml_backend_dev_count()):
        handle, props = libggml.ggml_backend_dev_get(index), _Props()
        libggml.ggml_backend_dev_get_props(handle, ctypes.byref(props))
        if props.type in (_GPU, _INTEGRATED_GPU):
            found.append(_device(handle, props))
    return tuple(found)


def _device(handle: Any, props: _Props) -> Device:
    return Device(
        handle,
        (props.name or b"").decode(),
        (props.description or b"").decode(),
        props.memory_free,
        props.memory_total,
        (props.device_id or b"").decode().lower(),
    )
