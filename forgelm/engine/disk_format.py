"""How one saved state lies in its file. Knows bytes and open files; directories and threads are not its business.

    magic 8 | version u32 | header length u32 | digest 16 of these and the header | header, msgpack | state

Integers are little-endian. Every byte is under a digest, so a file is whole or it is `Broken`, never half used. Digests
find damage, not forgery: who can write a file could send llama.cpp anything, so other users' files are refused.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from io import FileIO

import msgspec
import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

SUFFIX = ".forgelm-state"
CHUNK = 16 << 20
"""Bytes hashed, written or read by one call: long enough that Python hardly takes part, short enough to be stopped."""

_MAGIC = b"FORGELM\0"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sII")
_SEAL_BYTES = 16
_DIGEST_BYTES = 32
_START = _PREAMBLE.size + _SEAL_BYTES
_MOST_HEADER = 64 << 20
_FIRST_READ = 8192
"""Holds the header of 2,000 tokens, so most files are known after one read."""


class Broken(Exception):
    """A file isn't what was once written; says why."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a state without reading it."""

    identity: str
    """Of what computed it: model, KV type, build. Another's state is useless."""
    partial: bool
    """The recurrent part alone."""
    tokens: bytes
    """Their ids as int32, little-endian."""
    size: int
    """Bytes of the state."""
    digest: bytes
    """blake2b of the state."""

    @property
    def name(self) -> str:
        """The file's name."""
        return state_name(self.identity, self.partial, self.tokens)

    def token_ids(self) -> Tokens:
        """Shape (n,), read-only."""
        return np.frombuffer(self.tokens, "<i4").astype(np.int32, copy=False)


def state_name(identity: str, partial: bool, tokens: bytes) -> str:
    """The same for the same state, whoever writes it."""
    key = hashlib.blake2b(identity.encode()).digest()
    person = b"partial" if partial else b"whole"
    return hashlib.blake2b(tokens, digest_size=16, key=key, person=person).hexdigest() + SUFFIX


def encode(header: Header) -> bytes:
    """Everything before the state."""
    body = msgspec.msgpack.encode(header)
    preamble = _PREAMBLE.pack(_MAGIC, _VERSION, len(body))
    return preamble + _seal(preamble, body) + body


def digest_of(data: Bytes, between: Callable[[], None]) -> bytes:
    """`between` is called before each chunk and may raise."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for start in range(0, len(data), CHUNK):
        between()
        digest.update(data[start : start + CHUNK].data)
    return digest.digest()


def read_header(file: FileIO, name: str) -> Header | None:
    """The header of the file called `name`, all of it verified; `None` for a sound file of another version.

    Raises `Broken`, and `OSError` when the file can't be read.
    """
    info = os.fstat(file.fileno())
    if info.st_uid != os.geteuid():
        raise Broken("it belongs to another user")
    start = os.pread(file.fileno(), _FIRST_READ, 0)
    if len(start) < _START:
        raise Broken("it ends within its first bytes")
    magic, version, length = _PREAMBLE.unpack_from(start)
    if magic != _MAGIC:
        raise Broken("it isn't a saved state")
    if _START + length > min(info.st_size, _MOST_HEADER):
        raise Broken("it ends within its header")
    if _START + length > len(start):
        start += os.pread(file.fileno(), _START + length - len(start), len(start))
    body = start[_START : _START + length]
    if _seal(start[: _PREAMBLE.size], body) != start[_PREAMBLE.size : _START]:
        raise Broken("its header is damaged")
    if version != _VERSION:
        return None
    header = _decode(body)
    if header.name != name:
        raise Broken("it has another state's name")
    if _START + length + header.size != info.st_size:
        raise Broken(f"it has {info.st_size} bytes instead of {_START + length + header.size}")
    file.seek(_START + length)
    return header


def read_state(file: FileIO, header: Header) -> Bytes:
    """The state, verified, shape (header.size,), from a file whose header was just read.

    Raises `Broken`, `OSError`, and `MemoryError` when there is no room for it.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    data = np.empty(header.size, np.uint8)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    done = 0
    while done < len(data):
        count = file.readinto(data[done : done + CHUNK].data)
        if not count:
            raise Broken("it became shorter while it was read")
        digest.update(data[done : done + count].data)
        done += count
    if digest.digest() != header.digest:
        raise Broken("its state is damaged")
    return data


def _decode(body: bytes) -> Header:
    try:
        header = msgspec.msgpack.decode(body, type=Header)
    except msgspec.MsgspecError as error:
        raise Broken(f"its header can't be understood: {error}") from None
    if header.size < 0 or len(header.tokens) % 4:
        raise Broken("its header makes no sense")
    return header


def _seal(preamble: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(preamble + body, digest_size=_SEAL_BYTES).digest()
