"""What a GGUF file says about itself: its key-values and its tensors' names, types and sizes. No weights.

Made by ggml's own reader (`llama.gguf`) from a file that is here, or by `gguf.parse` from the first bytes of one that
is elsewhere.
"""

from dataclasses import dataclass

from forgelm.errors import ModelError

Scalar = bool | int | float | str
Value = Scalar | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file."""

    name: str
    type: str
    """ggml's name of it, such as "q4_K"."""
    shape: tuple[int, ...]
    """ggml's order: the contiguous dimension first."""
    bytes: int


@dataclass(frozen=True)
class Header:
    """What a file says about itself."""

    values: dict[str, Value]
    """Without arrays of text or floats and without very long ones."""
    lengths: dict[str, int]
    """Elements of every array, the skipped ones included."""
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def number(self, key: str, default: int | None = None) -> int:
        """The integer at `{architecture}.{key}`, the largest one of an array. Raises `ModelError` when absent."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple) and value:
            return max(value)
        if not isinstance(value, int):
            raise ModelError(f"the file says nothing of {self.architecture}.{key}")
        return value

    def per_layer(self, key: str, layers: int) -> tuple[int, ...]:
        """The integers at `{architecture}.{key}`, one a layer. Raises `ModelError` when absent or too few."""
        value = self.values.get(f"{self.architecture}.{key}")
        if not isinstance(value, tuple):
            return (self.number(key),) * layers
        if len(value) < layers:
            raise ModelError(f"{self.architecture}.{key} has {len(value)} entries for {layers} layers")
        return value[:layers]
