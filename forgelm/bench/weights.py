"""What one token costs by a model's weights alone: bytes read and operations done, from the file's real tensors.

The token embedding isn't read but for one row, unless it is the output matrix as well. Of a mixture's experts the
chosen ones count. Next-token (MTP) heads run only where tokens are guessed, and don't. Keys, values and states come on
top, by the length of the context.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forgelm.gguf.header import Header, Tensor
from forgelm.llama.gguf import read_header

EMBEDDINGS = ("token_embd", "per_layer_token_embd", "position_embd", "token_types")
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class TokenCost:
    """Of one token of one sequence."""

    bytes_per_token: float
    flops_per_token: float


def read_weights(model: Path) -> TokenCost:
    """Of the model at `model`, the first of its files where it has several. Raises `ModelError`."""
    headers = [read_header(path) for path in parts_of(model)]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    return weights_of(Header(headers[0].values, headers[0].lengths, tensors))


def parts_of(model: Path) -> list[Path]:
    """All files of a model whose first one this is."""
    found = _PART.search(model.name)
    if found is None:
        return [model]
    stem = model.name[: found.start()]
    return [model.with_name(f"{stem}-{part:05d}-of-{found[1]}.gguf") for part in range(1, int(found[1]) + 1)]


def weights_of(header: Header) -> TokenCost:
    """Of a model with this header."""
    size = operations = 0.0
    for tensor, share in _used(header):
        size += share * tensor.bytes
        if len(tensor.shape) > 1:
            # A multiplication and an addition for each weight.
            operations += 2 * share * math.prod(tensor.shape)
    return TokenCost(size, operations)


def _used(header: Header) -> Iterator[tuple[Tensor, float]]:
    """The tensors that a token needs, and which part of each."""
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    experts = header.number("expert_count", 0)
    chosen = header.number("expert_used_count", 0) / experts if experts else 1.0
    layers = header.number("block_count", 0) - header.number("nextn_predict_layers", 0)
    for tensor in header.tensors:
        block = _BLOCK.match(tensor.name)
        if block is not None and layers and int(block[1]) >= layers:
            continue
        if tensor.name.startswith(EMBEDDINGS) and not (tied and tensor.name == "token_embd.weight"):
            continue
        yield tensor, chosen if "_exps." in tensor.name else 1.0
