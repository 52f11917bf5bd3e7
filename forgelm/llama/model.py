"""A loaded model: weights in memory or on the GPU, and the facts only they can tell."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forgelm.errors import ModelError
from forgelm.llama.gguf import read_header
from forgelm.llama.heads import is_alone
from forgelm.llama.lib import L, c_string, load_handle
from forgelm.llama.vocab import Vocabulary


class Model:
    """Weights and vocabulary of one GGUF. Close it after every context made from it."""

    def __init__(self, handle: Any, devices: tuple[str, ...], keepalive: list[Any], *, load_mtp: bool = False) -> None:
        self.handle = handle
        self.devices = devices
        self.has_head = load_mtp and L.llama_model_n_layer_nextn(handle) > 0
        """A next-token head was in the file and is loaded."""
        self._keepalive = keepalive
        self.vocab = Vocabulary(handle)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        n_gpu_layers: int,
        devices: tuple[tuple[str, Any], ...] = (),
        progress: Callable[[float], bool] | None = None,
        load_mtp: bool = False,
    ) -> "Model":
        """Load `path`; `devices` are (name, ggml device) pairs, none is the CPU alone.

        `progress` gets 0 … 1 as the weights are read; the load stops when it says False. `load_mtp`: with its
        next-token head, if it has one; a file that holds nothing else loads only so. Raises `ModelError`.
        """
        params = L.llama_model_default_params()
        params.load_mtp = load_mtp
        handles = (ctypes.c_void_p * (len(devices) + 1))(*(handle for _, handle in devices), None)
        params.devices = ctypes.cast(handles, ctypes.c_void_p)
        params.n_gpu_layers = n_gpu_layers if devices else 0
        if len(devices) <= 1:
            params.split_mode = L.LLAMA_SPLIT_MODE_NONE if devices else L.LLAMA_SPLIT_MODE_LAYER
        keepalive: list[Any] = [handles]
        if progress is not None:
            params.progress_callback = _progress(progress, keepalive)
        names = tuple(name for name, _ in devices) or ("CPU",)
        model = cls(load_handle(path, params), names, keepalive, load_mtp=load_mtp)
        # llama.cpp loads such a file, and crashes at the first decode.
        if not load_mtp and L.llama_model_n_layer_nextn(model.handle) and is_alone(read_header(path)):
            model.close()
            raise ModelError(f"{path} holds a model's next-token head alone")
        return model

    def close(self) -> None:
        """Free the weights. Harmless when called again."""
        if self.handle:
            L.llama_model_free(self.handle)
            self.handle = None

    @property
    def architecture(self) -> str:
        return self.vocab.metadata("general.architecture")

    @property
    def description(self) -> str:
        """llama.cpp's one-line name, such as "qwen35 4B Q4_K - Medium"."""
        return c_string(L.llama_model_desc, self.handle)

    @property
    def parameters(self) -> int:
        return int(L.llama_model_n_params(self.handle))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(L.llama_model_size(self.handle))

    @property
    def layers(self) -> int:
        return int(L.llama_model_n_layer(self.handle))

    @property
    def context_train(self) -> int:
        return int(L.llama_model_n_ctx_train(self.handle))

    @property
    def sliding_window(self) -> int:
        """Tokens; 0 when every layer sees the whole context."""
        return int(L.llama_model_n_swa(self.handle))

    @property
    def attention(self) -> bool:
        """Whether any layer keeps keys and values."""
        return not L.llama_model_is_recurrent(self.handle)

    @property
    def recurrent(self) -> bool:
        """Whether any layer keeps a recurrent state, which can't be cut back."""
        return bool(L.llama_model_is_recurrent(self.handle) or L.llama_model_is_hybrid(self.handle))


def _progress(report: Callable[[float], bool], keepalive: list[Any]) -> Any:
    def callback(fraction: float, _: object) -> bool:
        return report(fraction)

    wrapped = L.llama_progress_callback(callback)
    keepalive.append(wrapped)
    return wrapped
