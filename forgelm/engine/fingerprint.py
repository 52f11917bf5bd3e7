"""Which model a file holds, told from samples of its content: milliseconds, where hashing all of it takes many seconds.

Saved states are good for one set of weights only. A file's name and times say nothing about those: files are renamed,
copied and replaced.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from forgelm.errors import ModelError

HEAD = 1 << 20
PIECE = 1 << 16
PIECES = 64

_PART = re.compile(r"(?P<stem>.*)-00001-of-(?P<count>\d{5})\.gguf")


def model_fingerprint(path: Path) -> str:
    """32 hex digits that two GGUF files share only when they hold the same model, as far as samples tell.

    Covers the size, the first MiB (metadata), 64 pieces of 64 KiB spread evenly over the rest, and the last one. A file
    below 5 MiB is covered whole; in a larger one, a change between two pieces that keeps the size goes unseen. Another
    quantization or a fine-tune of whole layers is seen; one small tensor replaced in place may not be. Of a model in
    several files, `…-00001-of-0000n.gguf` stands for all of them.

    Raises `ModelError` when a file can't be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(path):
        try:
            _add(part, digest)
        except OSError as error:
            raise ModelError(f"{part} can't be read: {error.strerror or error}") from None
    return digest.hexdigest()


def _parts(path: Path) -> Iterator[Path]:
    """The files that llama.cpp loads for `path`."""
    match = _PART.fullmatch(path.name)
    if match is None:
        yield path
        return
    for number in range(1, int(match["count"]) + 1):
        yield path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")


def _add(path: Path, digest: hashlib.blake2b) -> None:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        for start, length in _samples(size):
            digest.update(os.pread(file.fileno(), length, start))


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of what is looked at, in ascending order."""
    if size <= HEAD + (PIECES + 1) * PIECE:
        yield 0, size
        return
    yield 0, HEAD
    last = size - PIECE
    for number in range(PIECES):
        yield HEAD + (last - HEAD) * number // PIECES, PIECE
    yield last, PIECE
