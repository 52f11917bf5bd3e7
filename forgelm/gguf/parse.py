"""A GGUF's header from its first bytes, in Python alone: for files that are elsewhere, and for processes without ggml.

It takes and refuses what ggml's own reader (llama.cpp's ggml/src/gguf.cpp) takes and refuses, and gives the same
`Header` as `llama.gguf.read_header`. The bytes may be anybody's.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from forgelm.errors import ModelError
from forgelm.gguf.cursor import Cursor, Incomplete
from forgelm.gguf.header import Header
from forgelm.gguf.impostors import ENOUGH, what_it_is
from forgelm.gguf.pairs import LEAST_PAIR, read_pairs
from forgelm.gguf.tensors import LEAST_TENSOR, padded, read_tensors

__all__ = ["Incomplete", "Parsed", "parse", "read", "read_by"]

FIRST = 2 << 20
"""Bytes asked for at first: all of the header of a model with a small vocabulary."""
LONGEST = 64 << 20
"""Bytes of a header. Those of models with 256k tokens have 11 to 15 MB."""
MOST = 1 << 16
"""Tensors, and key-values; the largest models have some thousands of the one and a hundred of the other."""
VERSIONS = (2, 3)
_MAGIC = b"GGUF"


class Parsed(NamedTuple):
    """A header and where it ends."""

    header: Header
    data_start: int
    """Where the tensors' bytes begin."""
    size: int
    """Least bytes of a whole file: one that has fewer was cut off."""


def parse(data: bytes | bytearray | memoryview) -> Parsed:
    """Read a header from the beginning of a file.

    Raises `Incomplete` when it goes on after `data`, and `ModelError` when this is no GGUF or none that ggml would
    load.
    """
    with memoryview(data).cast("B") as view:
        return _parse(Cursor(view))


def read(path: Path) -> Parsed:
    """Read the header of a file, 11 MB in some tens of milliseconds. Raises `ModelError` in one line.

    Whether all of the weights are there is for the caller to see: `size` is what they take.
    """
    try:
        if not path.is_file():
            raise ModelError(f"no model file at {path}")
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_by(lambda start, stop: os.pread(handle, stop - start, start), os.fstat(handle).st_size)
        except ModelError as error:
            raise ModelError(f"{path} can't be read: {error}") from None
        finally:
            os.close(handle)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from None


def read_by(fetch: Callable[[int, int], bytes], limit: int) -> Parsed:
    """Read the header of a file of `limit` bytes that may be anywhere.

    `fetch(start, stop)` gives those bytes of it. It is called for piece after piece, each at least as long as all
    before; what it raises goes through. Raises `ModelError`.
    """
    data = bytearray()
    wanted = min(FIRST, limit)
    while True:
        data += fetch(len(data), wanted)[: wanted - len(data)] if wanted else b""
        try:
            return parse(data)
        except Incomplete as incomplete:
            needed = incomplete.needed
        if len(data) < wanted or needed > limit:
            raise ModelError(_cut_off(len(data)))
        if needed > LONGEST:
            raise ModelError(f"its header would be longer than {LONGEST >> 20} MiB: it is damaged")
        wanted = min(limit, max(needed, 2 * len(data)))


def _cut_off(size: int) -> str:
    return f"it ends within its header, after {size:,} bytes" if size else "it is empty"


def _parse(cursor: Cursor) -> Parsed:
    tensor_count, pair_count = _preamble(cursor)
    pairs = read_pairs(cursor, pair_count)
    tensors = read_tensors(cursor, tensor_count, pairs.alignment)
    data_start = padded(cursor.at, pairs.alignment) if tensor_count else cursor.at
    return Parsed(Header(pairs.values, pairs.lengths, tensors.tensors), data_start, data_start + tensors.bytes)


def _preamble(cursor: Cursor) -> tuple[int, int]:
    """The numbers of tensors and key-values."""
    start = bytes(cursor.data[:ENOUGH])
    if not start.startswith(_MAGIC) and not _MAGIC.startswith(start):
        raise ModelError(f"it is no GGUF file but {what_it_is(start)}")
    cursor.skip(len(_MAGIC))
    _check_version(cursor.u32())
    tensors, pairs = cursor.u64(), cursor.u64()
    if max(tensors, pairs) > MOST:
        raise ModelError(f"it has {tensors:,} tensors and {pairs:,} key-values: it is damaged")
    cursor.expect(pairs * LEAST_PAIR + tensors * LEAST_TENSOR)
    return tensors, pairs


def _check_version(version: int) -> None:
    if version in VERSIONS:
        return
    if version and not version & 0xFFFF:
        raise ModelError("it is a GGUF for big-endian machines, which this one can't load")
    raise ModelError(f"it is version {version} of GGUF, and llama.cpp loads 2 and 3")
