"""Shapes of models whose file isn't here: Qwen3.5's four small ones, from their published configuration.

Bytes of weights are the file's where its size is published, else the quantization's bits per weight times the model's
weights. A file's vocabulary and the MTP head aren't loaded as weights, and are taken off.
"""

import re
from typing import NamedTuple

from forgelm.config import ModelSource
from forgelm.fit.shapes import Layer, Shape, Weights

VOCABULARY = 248_320
CONTEXT = 262_144
HEADER = 11_000_000
"""Bytes of a file that are no tensors: vocabulary, merges, template."""
STATE_SIZE = 128
CONV_KERNEL = 4
INTERVAL = 4


class Published(NamedTuple):
    """One model's sizes, named as in its config.json."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    linear_key_heads: int
    linear_value_heads: int
    tied: bool
    head_bytes: int
    """Of the MTP head, in the files that have it."""


QWEN35 = {
    "0.8B": Published(24, 1024, 3584, 8, 2, 256, 16, 16, tied=True, head_bytes=20_000_000),
    "2B": Published(24, 2048, 6144, 8, 2, 256, 16, 16, tied=True, head_bytes=61_000_000),
    "4B": Published(32, 2560, 9216, 16, 4, 256, 16, 32, tied=True, head_bytes=81_195_008),
    "9B": Published(32, 4096, 12288, 16, 4, 256, 16, 32, tied=False, head_bytes=188_304_512),
}
FILE_BYTES = {
    ("0.8B", "Q4_K_M"): 532_517_120,
    ("2B", "Q4_K_M"): 1_280_835_840,
    ("4B", "Q4_K_M"): 2_740_937_888,
    ("4B", "Q5_K_M"): 3_143_656_608,
    ("9B", "Q4_K_M"): 5_680_522_464,
}
"""Files without the head, as listed by their publisher (unsloth)."""
BITS = {"Q4_K_M": 4.95, "Q5_K_M": 5.85, "Q6_K": 6.5625, "Q8_0": 8.5}
"""Per weight outside the vocabulary. Exact for the last two; the mixtures' are those of the 4B files above."""
QUANTS = tuple(BITS)
_EMBEDDING = {"Q4_K_M": 4.5, "Q5_K_M": 5.5, "Q6_K": 6.5625, "Q8_0": 8.5}
_FILE = re.compile(r"Qwen3\.5-(0\.8B|2B|4B|9B)-(?:MTP-)?([A-Za-z0-9_-]+)\.gguf$")
_MOST_COMMON = "Q4_K_M"


def named(source: ModelSource) -> tuple[str, str]:
    """Size and quantization that the file's name tells, such as ("4B", "Q4_K_M"); empty when it is none of these."""
    found = _FILE.search(source.file)
    return (found[1], found[2]) if found else ("", "")


def published_shape(source: ModelSource, quant: str = "") -> Shape | None:
    """The shape of the profile's model, in its own quantization or in `quant`; None when it isn't known here."""
    size, own = named(source)
    same = quant in ("", own)
    quant = quant or own
    model = QWEN35.get(size)
    if model is None or (quant not in BITS and not (same and source.bytes)):
        return None
    head = model.head_bytes if "MTP" in source.repo else 0
    file_bytes = source.bytes - head if same and source.bytes else FILE_BYTES.get((size, quant), 0)
    known = "the published shape and size" if file_bytes else "the published shape"
    return _shape(model, quant, file_bytes, head, f"{known} of Qwen3.5-{size} {quant}")


def _shape(model: Published, quant: str, file_bytes: int, head: int, source: str) -> Shape:
    inputs, outputs = _vocabulary_bytes(model, quant)
    counts = [_weights(model, index) for index in range(model.layers)]
    body = file_bytes - HEADER - inputs - outputs if file_bytes else int(sum(counts) * BITS[quant] / 8)
    width, channels, inner = model.kv_heads * model.head_dim, _channels(model), _inner(model)
    convolution = 4 * (CONV_KERNEL - 1) * channels
    state = convolution + 4 * STATE_SIZE * inner
    layers = tuple(
        Layer(Weights(body * count // sum(counts)), keys=width, values=width)
        if _is_full(index)
        else Layer(Weights(body * count // sum(counts)), state=state, convolution=convolution)
        for index, count in enumerate(counts)
    )
    return Shape(
        architecture="qwen35",
        source=source,
        layers=layers,
        inputs=Weights(inputs),
        outputs=Weights(outputs),
        tied=model.tied,
        hidden=model.hidden,
        feed_forward=model.feed_forward,
        heads=model.heads,
        queries=model.heads * model.head_dim,
        vocabulary=VOCABULARY,
        context_train=CONTEXT,
        gated=True,
        channels=channels,
        inner=inner,
        head=Layer(Weights(head), keys=width, values=width) if head else None,
    )


def _vocabulary_bytes(model: Published, quant: str) -> tuple[int, int]:
    """Of the token embedding and of the output matrix. llama-quantize gives the latter, shared or not, 6 bits."""
    elements = VOCABULARY * model.hidden
    bits = _EMBEDDING.get(quant, _EMBEDDING[_MOST_COMMON])
    output = int(elements * max(bits, 6.5625) / 8)
    return (output, 0) if model.tied else (int(elements * bits / 8), output)


def _weights(model: Published, index: int) -> int:
    """Weights of one layer."""
    shared = 3 * model.hidden * model.feed_forward
    if _is_full(index):
        queries, width = model.heads * model.head_dim, model.kv_heads * model.head_dim
        return shared + model.hidden * (3 * queries + 2 * width)  # queries with their gate, and the way back
    inner = _inner(model)
    return shared + model.hidden * (_channels(model) + 2 * inner + 2 * model.linear_value_heads)


def _is_full(index: int) -> bool:
    return (index + 1) % INTERVAL == 0


def _inner(model: Published) -> int:
    return model.linear_value_heads * STATE_SIZE


def _channels(model: Published) -> int:
    return _inner(model) + 2 * model.linear_key_heads * STATE_SIZE
