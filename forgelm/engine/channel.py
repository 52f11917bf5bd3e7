"""A child process's end of the socket to the API process: messages in and out, and the news that the other end is gone.

Which messages come in is the caller's to say; nothing here knows what they mean.
"""

import select
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from forgelm.ipc.framing import FrameBuffer, FrameError, frame
from forgelm.ipc.messages import Message

Received = TypeVar("Received")

_READ = 1 << 20


class PeerGone(Exception):
    """The API process closed the socket: there is nobody to work for."""


class Channel(Generic[Received]):
    """The child's end of the socket."""

    def __init__(self, connection: socket.socket, decode: Callable[[bytes], Received]) -> None:
        self._socket = connection
        self._decode = decode
        self._buffer = FrameBuffer()

    def send(self, message: Message) -> None:
        """Send one message. Raises `PeerGone`."""
        try:
            self._socket.sendall(frame(message))
        except OSError:
            raise PeerGone from None

    def receive(self, patience: float | None = 0.0) -> list[Received]:
        """All messages that have arrived; waits up to `patience` seconds (None: for ever) for the first.

        Raises `PeerGone` or `FrameError`.
        """
        messages: list[Received] = []
        if patience != 0.0:
            select.select([self._socket], [], [], patience)
        while True:
            try:
                data = self._socket.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            except OSError:
                raise PeerGone from None
            if not data:
                raise PeerGone
            messages += [self._message(body) for body in self._buffer.feed(data)]

    def _message(self, body: bytes) -> Received:
        try:
            return self._decode(body)
        except msgspec.DecodeError as error:
            raise FrameError(f"a message that isn't ours: {error}") from None
