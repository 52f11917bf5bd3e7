"""The key-values of a GGUF: scalars, texts and short arrays of integers. Of the others, how long they are."""

import struct
from dataclasses import dataclass, field

from forgelm.errors import ModelError
from forgelm.gguf.cursor import Cursor, as_text
from forgelm.gguf.header import Scalar, Value

LEAST_PAIR = 8 + 1 + 4 + 1
"""Bytes of the shortest: a key of one letter, a type, a value of one byte."""
KEPT = 4096
"""Elements of an array that is worth keeping: per-layer figures, but no vocabulary."""
ALIGNMENT = "general.alignment"
_USUAL_ALIGNMENT = 32
_UINT32, _STRING, _ARRAY = 4, 8, 9
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's numbers of types with a fixed size → `struct`'s letters."""
_FLOATS = (6, 12)


@dataclass
class Pairs:
    """What was read."""

    values: dict[str, Value] = field(default_factory=dict)
    """Scalars, texts and short arrays of integers."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Elements of every array."""
    alignment: int = _USUAL_ALIGNMENT
    """Bytes that each tensor's place is a multiple of."""


def read_pairs(cursor: Cursor, count: int) -> Pairs:
    """The next `count` key-values. Raises `Incomplete`, and `ModelError` where ggml would refuse them."""
    pairs, seen = Pairs(), set[bytes]()
    for _ in range(count):
        raw = cursor.raw_text()
        key = as_text(raw)
        if not raw or raw in seen:
            raise ModelError(f"it has the key {key[:60]!r} twice" if raw else "one of its keys is empty")
        seen.add(raw)
        kind = cursor.u32()
        if key == ALIGNMENT and kind != _UINT32:
            raise ModelError(f"its {ALIGNMENT} is no 32-bit number")
        if kind == _ARRAY:
            _read_array(cursor, key, pairs)
        else:
            pairs.values[key] = _scalar(cursor, key, kind)
    pairs.alignment = _alignment(pairs.values.get(ALIGNMENT, _USUAL_ALIGNMENT))
    return pairs


def _scalar(cursor: Cursor, key: str, kind: int) -> Scalar:
    if kind == _STRING:
        return as_text(cursor.raw_text())
    return cursor.numbers(_letter(key, kind), 1)[0]


def _read_array(cursor: Cursor, key: str, pairs: Pairs) -> None:
    kind, count = cursor.u32(), cursor.count()
    pairs.lengths[key] = count
    if kind == _STRING:
        cursor.skip_texts(count)
        return
    letter = _letter(key, kind)
    if kind in _FLOATS or not 0 < count <= KEPT:
        cursor.skip(count * struct.calcsize(f"<{letter}"))
    else:
        pairs.values[key] = tuple(map(int, cursor.numbers(letter, count)))


def _letter(key: str, kind: int) -> str:
    if kind not in _LETTERS:
        raise ModelError(f"its key {key[:60]!r} has the type {kind}, which ggml doesn't know")
    return _LETTERS[kind]


def _alignment(value: Value) -> int:
    if not isinstance(value, int) or value <= 0 or value & (value - 1):
        raise ModelError(f"its alignment {str(value)[:60]!r} is no power of two")
    return value
