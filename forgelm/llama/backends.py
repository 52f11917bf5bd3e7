"""The modules of a portable build of llama.cpp: one for each processor family, one for each make of GPU.

Such a build has no backend until it is told where they lie: ggml would look beside the Python interpreter. It is also
ours to say which of the processors' modules runs. A build for one processor has its backends linked in, and nothing
here happens.
"""

import _ctypes
import ctypes
from pathlib import Path
from typing import Any

from forgelm import log

CPU = "libggml-cpu-"
NO_BACKENDS = {"libggml.so", "libggml-base.so"}
AMX = "libggml-cpu-sapphirerapids.so"
"""Never taken: virtual machines announce AMX and fault at its first instruction."""

_refused: dict[str, str] = {}


def load_backends(library: Any, directory: Path) -> None:
    """Register what this machine can run of the modules in `directory`; harmless where backends are linked in.

    `library` is libggml. GPUs come first, as ggml has it: devices are used in the order of registration.
    """
    if library.ggml_backend_reg_count():
        return
    for module in sorted(directory.glob("libggml-*.so")):
        if module.name not in NO_BACKENDS and not module.name.startswith("libggml-cpu"):
            _load_if_possible(library, module)
    best = best_for_this_processor(directory)
    if best is not None:
        _load(library, best)


def refused_backends() -> dict[str, str]:
    """Name → reason of the backends that are installed and can't be loaded: `{"cuda": "libcuda.so.1: cannot …"}`."""
    return dict(_refused)


def best_for_this_processor(directory: Path) -> Path | None:
    """The CPU module with the highest score by llama.cpp's own count of instruction sets; None without any."""
    scores = {module: _score(module) for module in sorted(directory.glob(f"{CPU}*.so")) if module.name != AMX}
    best = max(scores, key=lambda module: scores[module], default=None)
    return best if best is not None and scores[best] else None


def _score(module: Path) -> int:
    """0 for a module that needs more than this processor has."""
    handle = ctypes.CDLL(str(module))
    try:
        return int(handle.ggml_backend_score())
    finally:
        _ctypes.dlclose(handle._handle)


def _load_if_possible(library: Any, module: Path) -> None:
    """Without its driver's libraries a GPU's module can't be loaded, which is no error where there is no such GPU."""
    name = module.stem.removeprefix("libggml-")
    try:
        handle = ctypes.CDLL(str(module))
    except OSError as error:
        _refused[name] = str(error)
        log.get("llama.cpp").debug("backend not loaded", backend=name, reason=str(error))
        return
    _load(library, module)
    _ctypes.dlclose(handle._handle)


def _load(library: Any, module: Path) -> None:
    library.ggml_backend_load.restype = ctypes.c_void_p
    library.ggml_backend_load.argtypes = [ctypes.c_char_p]
    found = library.ggml_backend_load(str(module).encode())
    log.get("llama.cpp").debug("backend", module=module.name, usable=bool(found))
