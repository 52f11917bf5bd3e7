"""What memory depends on in a model: layers, widths and the bytes of its weights by where they go.

Widths are in elements. Where a shape is from, `header` and `published` know.
"""

import msgspec


class Weights(msgspec.Struct, frozen=True):
    """Bytes of some tensors, and how many of them the CPU uses a copy of."""

    bytes: int = 0
    copied: int = 0

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.bytes + other.bytes, self.copied + other.copied)


class Layer(msgspec.Struct, frozen=True):
    """One layer. Attention has keys and values, a recurrent layer a state, some architectures both."""

    weights: Weights
    keys: int = 0
    """Of one token."""
    values: int = 0
    state: int = 0
    """Bytes for one sequence, the convolution's part included."""
    convolution: int = 0
    """Bytes of that part."""


class Shape(msgspec.Struct, frozen=True):
    """One model."""

    architecture: str
    source: str
    """Where this is from, for people."""
    layers: tuple[Layer, ...]
    inputs: Weights
    """The token embedding: on the host, wherever the layers are."""
    outputs: Weights
    """The output matrix and what else belongs to no layer; follows the last layer."""
    tied: bool
    """The token embedding is the output matrix as well: a GPU gets a second one."""
    hidden: int
    feed_forward: int
    heads: int
    queries: int
    """Of one token, over all heads."""
    vocabulary: int
    context_train: int
    masks: int = 1
    """2 with sliding-window attention: one for each kind of layer."""
    gated: bool = False
    """Queries come with a gate of their size."""
    channels: int = 0
    """Of the recurrent layers' convolution."""
    inner: int = 0
    """Their inner width."""
    tied_copy: int = 0
    """Bytes of the copy a CPU makes of a tied embedding to multiply by; rows of it are read in place."""
    head: Layer | None = None
    """The next-token (MTP) head, loaded only for speculation."""

    @property
    def recurrent(self) -> bool:
        """Whether any layer keeps a state."""
        return any(layer.state for layer in self.layers)

    @property
    def state(self) -> int:
        """Bytes of one sequence's recurrent state."""
        return sum(layer.state for layer in self.layers)

    @property
    def last_layer(self) -> int:
        """llama.cpp's count of layers, the MTP head included: `n_gpu_layers` counts from there down."""
        return len(self.layers) + (self.head is not None)
