"""Length-prefixed frames over a stream socket: four bytes little-endian length, then one msgpack value.

Knows nothing of what the messages mean. Both ends encode with `frame`; the engine reads with `FrameBuffer`, the API
with asyncio's `readexactly`.
"""

import struct

import msgspec

HEADER = struct.Struct("<I")
MAX_FRAME = 64 * 1024 * 1024
"""Bytes. A longer length is a lost sync or a bug, and reading on would only take memory."""


class FrameError(Exception):
    """The stream holds no frame of ours: the peer must be restarted."""


_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """`message` as one frame, header included."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def body_size(header: bytes) -> int:
    """Bytes of the body that follows `header`. Raises `FrameError` over `MAX_FRAME`."""
    size: int = HEADER.unpack(header)[0]
    if size > MAX_FRAME:
        raise FrameError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    return size


class FrameBuffer:
    """Bytes in, whole frame bodies out, however the stream was cut."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`; returns the bodies of all frames that are complete. Raises `FrameError`."""
        self._bytes += data
        bodies: list[bytes] = []
        start = 0
        while len(self._bytes) - start >= HEADER.size:
            end = start + HEADER.size + body_size(bytes(self._bytes[start : start + HEADER.size]))
            if len(self._bytes) < end:
                break
            bodies.append(bytes(self._bytes[start + HEADER.size : end]))
            start = end
        del self._bytes[:start]
        return bodies
