"""The tensors of a GGUF: names, shapes, types and sizes, held to what ggml allows."""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from forgelm.errors import ModelError
from forgelm.gguf.cursor import Cursor, as_text
from forgelm.gguf.header import Tensor
from forgelm.gguf.types import COUNT, TENSOR_TYPES, TensorType

LEAST_TENSOR = 8 + 4 + 4 + 8
"""Bytes of the shortest: no name, no dimension, a type and a place."""
LONGEST_NAME = 63
"""Bytes."""
DIMENSIONS = 4
_MOST_ELEMENTS, _MOST_BYTES = 2**63 - 1, 2**64 - 1
"""What ggml counts them with."""


class Tensors(NamedTuple):
    """What was read."""

    tensors: tuple[Tensor, ...]
    bytes: int
    """From the first one's beginning to the last one's end."""


def padded(at: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return at + -at % alignment


def read_tensors(cursor: Cursor, count: int, alignment: int) -> Tensors:
    """The next `count` descriptions. Raises `Incomplete`, and `ModelError` where ggml would refuse them."""
    tensors, seen, end = list[Tensor](), set[bytes](), 0
    for _ in range(count):
        raw = cursor.raw_text()
        if len(raw) > LONGEST_NAME or raw in seen:
            raise ModelError(f"it has two tensors {raw!r}" if raw in seen else "a tensor's name is too long")
        seen.add(raw)
        tensor = _tensor(cursor, as_text(raw))
        place, start = cursor.u64(), padded(end, alignment)
        if place != start:
            raise ModelError(f"its tensor {tensor.name!r} is at {place:,} where ggml expects it at {start:,}")
        tensors.append(tensor)
        end = start + tensor.bytes
        if padded(end, alignment) > _MOST_BYTES:
            raise ModelError("its tensors are larger than any file")
    return Tensors(tuple(tensors), end)


def _tensor(cursor: Cursor, name: str) -> Tensor:
    dimensions = cursor.u32()
    if dimensions > DIMENSIONS:
        raise ModelError(f"its tensor {name!r} has {dimensions} dimensions")
    shape = list(struct.unpack_from(f"<{dimensions}q", cursor.data, cursor.skip(8 * dimensions))) or [1]
    _check_shape(name, shape)
    kind = _type(name, cursor.u32())
    if shape[0] % kind.values:
        raise ModelError(f"its tensor {name!r} has rows of {shape[0]:,} in blocks of {kind.values}")
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return Tensor(name, kind.name, tuple(shape), math.prod(shape) // kind.values * kind.bytes)


def _check_shape(name: str, shape: Sequence[int]) -> None:
    elements = shape[0]
    for size in shape[1:]:
        # As ggml has it: from the front, so that a zero doesn't excuse what is before it.
        if size > 1 and _MOST_ELEMENTS // size < elements:
            raise ModelError(f"its tensor {name!r} has more elements than ggml can count")
        elements *= size
    if min(shape) < 0:
        raise ModelError(f"its tensor {name!r} has a negative size")


def _type(name: str, number: int) -> TensorType:
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        why = "has dropped" if number < COUNT else "doesn't know"
        raise ModelError(f"its tensor {name!r} has the type {number}, which ggml {why}")
    return kind
