"""Loading libllama, its log, and what the build can do.

`llama_cpp/__init__.py` imports the package's high-level API (chat templates, disk cache, NumPy): 230 ms and 24 MB that
neither process uses. The package is therefore registered by its path alone, and only `llama_cpp.llama_cpp` is run.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from forgelm import log
from forgelm.errors import ModelError
from forgelm.llama.backends import load_backends, refused_backends

BINDINGS = "0.3.36"
COMMIT = "0c1e57098"
"""llama.cpp's commit inside llama-cpp-python `BINDINGS`; the library itself doesn't know it."""

_WARN, _ERROR, _CONTINUED = 3, 4, 5
_LEVELS = {1: "debug", 2: "debug", _WARN: "warning", _ERROR: "error"}
# Said on every load of a model that leaves tensors unused or has no tokenizer.ggml.pre, or because its context is as we
# ask for it: larger than it was trained for where requests share it or llama.cpp rounds it up, smaller where that is
# wanted, with whole windows so that prefixes can be kept. Nothing a user can act on.
_NOISE = (
    *("unused tensor", "control-looking token", "special_eos_id is not in special_eog_ids"),
    *("possible training context overflow", "using full-size SWA cache"),
    "the full capacity of the model will not be utilized",
)


class BuildInfo(msgspec.Struct, frozen=True):
    """What this libllama is."""

    bindings: str
    """llama-cpp-python's version."""
    version: str
    """llama.cpp's own version string."""
    commit: str
    """llama.cpp's commit, or "unknown" for bindings we don't know."""
    system_info: str
    """llama.cpp's list of CPU and backend features."""
    gpu_offload: bool
    openmp: bool
    refused: dict[str, str] = {}
    """Name → reason of the backends that are installed and can't be loaded here, such as "cuda"."""


def _bind() -> Any:
    if "llama_cpp" not in sys.modules:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or spec.submodule_search_locations is None:
            raise ModelError("llama-cpp-python is not installed; run `make setup`")
        package = types.ModuleType("llama_cpp")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec("llama_cpp", None, is_package=True)
        sys.modules["llama_cpp"] = package
    import llama_cpp.llama_cpp as bindings

    return bindings


L: Any = _bind()


class _Log:
    """llama.cpp's log callback: joins continued lines and keeps the last errors for messages of ours."""

    def __init__(self) -> None:
        self._logger = log.get("llama.cpp")
        self._line = ""
        self._level = 2
        self.problems: deque[str] = deque(maxlen=8)
        self.callback = L.llama_log_callback(self._receive)

    def _receive(self, level: int, text: bytes, _: object) -> None:
        if level != _CONTINUED:
            self._flush()
            self._level = level
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._flush()

    def _flush(self) -> None:
        # Some messages span lines and are indented; ours are one line each.
        line, self._line = " ".join(self._line.split()).strip("."), ""
        if not line:
            return
        if self._level == _ERROR:
            self.problems.append(line)
        level = "debug" if any(noise in line for noise in _NOISE) else _LEVELS.get(self._level, "debug")
        getattr(self._logger, level)(line)


_log: _Log | None = None


def start() -> None:
    """Initialise llama.cpp's backends once and send its log through ours. Harmless when called again."""
    global _log
    if _log is None:
        _log = _Log()
        L.llama_log_set(_log.callback, None)
        _load_backends()
        L.llama_backend_init()


def _load_backends() -> None:
    from llama_cpp import _ggml

    load_backends(_ggml.libggml, _ggml.libggml_base_path.resolve())


def last_problem() -> str:
    """The first of llama.cpp's recent error lines, which names the cause; "" if it said nothing."""
    problems = _log.problems if _log else ()
    return next(iter(problems), "")


def forget_problems() -> None:
    """What follows is a new attempt: `last_problem` won't name the cause of an earlier one."""
    if _log is not None:
        _log.problems.clear()


def load_handle(path: Path, params: Any) -> Any:
    """`llama_model_load_from_file`. Raises `ModelError` in one line with llama.cpp's own reason."""
    start()
    if not path.is_file():
        raise ModelError(f"no model file at {path}")
    forget_problems()
    handle = L.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        reason = last_problem().removeprefix("llama_model_load: error loading model: ")
        raise ModelError(f"{path} can't be loaded: {reason or 'llama.cpp gave no reason'}")
    return handle


def build_info() -> BuildInfo:
    """Facts about the library this process runs."""
    start()
    features = L.llama_print_system_info().decode()
    bindings = metadata.version("llama-cpp-python")
    return BuildInfo(
        bindings=bindings,
        version=L.llama_version().decode(),
        commit=COMMIT if bindings == BINDINGS else "unknown",
        system_info=features,
        gpu_offload=bool(L.llama_supports_gpu_offload()),
        openmp="OPENMP = 1" in features,
        refused=refused_backends(),
    )


def c_string(call: Any, *arguments: Any, size: int = 256) -> str:
    """The text a `(…, buffer, size) -> length` function of llama.cpp writes; "" when it has none."""
    buffer = ctypes.create_string_buffer(size)
    length = call(*arguments, buffer, size)
    if length >= size:
        buffer = ctypes.create_string_buffer(length + 1)
        length = call(*arguments, buffer, length + 1)
    return buffer.value.decode("utf-8", "replace") if length > 0 else ""
