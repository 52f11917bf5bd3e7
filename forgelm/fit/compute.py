"""How large llama.cpp's compute buffers get: the most that is alive at one point of its graph.

llama.cpp reserves them for the worst case, a full micro-batch of every sequence over a full cache, by laying out the
graph in one arena. The formulas count what is alive at the places that can be the peak; their terms were read off
llama.cpp's own dry runs over shapes, contexts, KV types and sequence counts, and tests hold them to those.
"""

import msgspec

from forgelm.config import QUANTIZED_KV
from forgelm.fit.shapes import Shape

F32, F16 = 4, 2


class Sizes(msgspec.Struct, frozen=True):
    """What a context is made with."""

    cells: int
    micro_batch: int
    """Rows of one graph at most."""
    sequences: int
    """Sequence ids, kept ones included."""
    rollback: int
    """`n_rs_seq`: last rows that a recurrent sequence can take back."""
    kv_type: str
    flash: bool
    guessed: int = 0
    """Rows of guesses in a step at most, beside one row for each sequence."""

    @property
    def rows(self) -> int:
        """Rows of the graph: llama.cpp rounds up to as many for every sequence."""
        rows = min(self.cells, self.micro_batch)
        return -(-rows // self.sequences) * self.sequences

    @property
    def outputs(self) -> int:
        """Rows with logits at most."""
        return self.sequences + self.guessed

    @property
    def states(self) -> int:
        """Recurrent states, those to go back to included."""
        return self.sequences * (1 + self.rollback)


def device_bytes(shape: Shape, sizes: Sizes, *, gpu: bool) -> int:
    """The compute buffer of the device that runs the layers."""
    peak = max(_feed_forward(shape, sizes), _attention(shape, sizes, gpu=gpu), _delta_net(shape, sizes))
    return max(mask_bytes(shape, sizes) + _rotation(shape, sizes) + peak, _logits(shape, sizes))


def host_bytes(shape: Shape, sizes: Sizes) -> int:
    """The host's part when all layers are on a GPU: masks, and the embedded rows twice."""
    return mask_bytes(shape, sizes) + 2 * sizes.rows * shape.hidden * F32


def mask_bytes(shape: Shape, sizes: Sizes) -> int:
    """Who may see which cell: a cell for every row."""
    return shape.masks * sizes.cells * sizes.rows * (F16 if sizes.flash else F32)


def _rotation(shape: Shape, sizes: Sizes) -> int:
    """Quantized keys and values are rotated first, by a square matrix each of a head's size."""
    head = shape.queries // shape.heads if shape.heads else 0
    return 2 * head * head * F32 if sizes.kv_type in QUANTIZED_KV else 0


def _feed_forward(shape: Shape, sizes: Sizes) -> int:
    """Up, gate and their product; residual, norm and input rows. Hybrids reuse one of those."""
    widths = (3 if shape.recurrent else 4) * shape.hidden + 3 * shape.feed_forward
    return widths * sizes.rows * F32


def _attention(shape: Shape, sizes: Sizes, *, gpu: bool) -> int:
    widest = max(shape.layers, key=lambda layer: layer.keys + layer.values)
    width = widest.keys + widest.values
    scores = 0 if sizes.flash else shape.heads * sizes.cells
    queries = (3 if shape.gated or not sizes.flash else 2) * shape.queries
    alive = (3 * shape.hidden + queries + width + scores) * sizes.rows * F32
    # CUDA's matrix kernels read f16 alone: one layer's whole cache is converted beside the result.
    converted = width * sizes.cells * F16 if gpu and sizes.flash and sizes.kv_type != "f16" else 0
    return alive + converted


def _delta_net(shape: Shape, sizes: Sizes) -> int:
    """Convolution in and out, and each sequence's state before and after; with rollback, after each of its rows."""
    widest = max(shape.layers, key=lambda layer: layer.state)
    state, convolution = widest.state - widest.convolution, widest.convolution
    copies = 2 + sizes.rollback
    mixed = 3 * shape.channels if sizes.rollback else 2 * shape.channels + shape.inner
    carrying = (3 * shape.hidden + mixed) * sizes.rows * F32 + sizes.sequences * (copies * state + 2 * convolution)
    convolving = 3 * (shape.hidden + shape.channels) * sizes.rows * F32 + sizes.sequences * 2 * convolution
    return max(carrying, convolving) if shape.recurrent else 0


def _logits(shape: Shape, sizes: Sizes) -> int:
    return (sizes.rows * shape.hidden + sizes.outputs * (shape.hidden + shape.vocabulary)) * F32
