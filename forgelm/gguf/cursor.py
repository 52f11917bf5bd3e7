"""A place in a file's first bytes, and the numbers and texts that are read from there. Knows no GGUF key.

Whatever a count or a length says, nothing is allocated for it before that many bytes are there.
"""

import struct

from forgelm.errors import ModelError

LONGEST = 1 << 30
"""ggml's limit for the bytes of a text and the elements of an array."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Incomplete(Exception):
    """The bytes end before the header does."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"at least {needed:,} bytes are needed")
        self.needed = needed
        """Bytes from the file's beginning that are needed at least."""


class Cursor:
    """Reads on and on. Every method raises `Incomplete` when the bytes don't suffice."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def expect(self, size: int) -> None:
        """Make sure that `size` more bytes are there."""
        if size > len(self.data) - self.at:
            raise Incomplete(self.at + size)

    def skip(self, size: int) -> int:
        """Go over `size` bytes; where they begin."""
        self.expect(size)
        start = self.at
        self.at += size
        return start

    def u32(self) -> int:
        """A 32-bit number."""
        return int(_U32.unpack_from(self.data, self.skip(4))[0])

    def u64(self) -> int:
        """A 64-bit number."""
        return int(_U64.unpack_from(self.data, self.skip(8))[0])

    def numbers(self, letter: str, count: int) -> tuple[int | float | bool, ...]:
        """`count` values of the type that `struct` calls `letter`."""
        size = struct.calcsize(f"<{letter}")
        return struct.unpack_from(f"<{count}{letter}", self.data, self.skip(count * size))

    def raw_text(self) -> bytes:
        """The bytes of a text, whose length comes first. Raises `ModelError` for one that ggml refuses."""
        size = _checked(self.u64(), "a text of {:,} bytes")
        start = self.skip(size)
        return bytes(self.data[start : self.at])

    def count(self) -> int:
        """The length of an array. Raises `ModelError` for one that ggml refuses."""
        return _checked(self.u64(), "an array of {:,} elements")

    def skip_texts(self, count: int) -> None:
        """Go over `count` texts: a vocabulary of 250k entries in some tens of milliseconds."""
        self.expect(8 * count)
        data, at, size, length = self.data, self.at, 0, _U64.unpack_from
        try:
            for _ in range(count):
                (size,) = length(data, at)
                at += 8 + size
        except (struct.error, OverflowError):
            at += 8
        _checked(size, "a text of {:,} bytes")
        self.skip(at - self.at)


def as_text(raw: bytes) -> str:
    """As ggml's users see it: up to the first NUL."""
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _checked(size: int, what: str) -> int:
    if size > LONGEST:
        raise ModelError(f"it has {what.format(size)}, which ggml refuses: it is damaged")
    return size
