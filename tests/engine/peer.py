"""The API's end of the engine's socket, for tests: sends, receives, and sees how the engine's thread ended."""

import socket
import threading
from collections.abc import Callable

import msgspec

from forgelm.engine.channel import Channel
from forgelm.ipc.framing import HEADER, MAX_FRAME, FrameBuffer, frame
from forgelm.ipc.messages import FromEngine, Step, ToEngine, decode_from_engine, decode_to_engine

PATIENCE = 10.0

GARBAGE = {
    "oversize": HEADER.pack(MAX_FRAME + 1),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "no msgpack": HEADER.pack(3) + b"\xc1\xc1\xc1",
    "empty": HEADER.pack(0),
    "unknown tag": HEADER.pack(5) + msgspec.msgpack.encode(["boo"]),
    "wrong type": HEADER.pack(9) + msgspec.msgpack.encode(["abort", "a"]),
}
"""Streams that hold no message of ours."""


class Peer:
    """The API's end: sends, receives, and knows how the engine's thread ended."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE)
        self.result: object = None
        self._buffer = FrameBuffer()
        self._inbox: list[FromEngine] = []
        self._thread = threading.Thread(target=lambda: None)

    def start(self, run: Callable[[Channel[ToEngine]], object]) -> None:
        def body() -> None:
            try:
                self.result = run(Channel(self.theirs, decode_to_engine))
            except Exception as error:  # noqa: BLE001
                self.result = error

        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()

    def send(self, *messages: msgspec.Struct) -> None:
        self.socket.sendall(b"".join(map(frame, messages)))

    def receive(self) -> FromEngine:
        while not self._inbox:
            self._inbox += map(decode_from_engine, self._buffer.feed(self.socket.recv(65_536)))
        return self._inbox.pop(0)

    def step(self) -> Step:
        message = self.receive()
        assert isinstance(message, Step)
        return message

    def answer(self, request_id: int) -> tuple[list[int], str]:
        """Everything one request gets; other messages on the way are dropped."""
        tokens: list[int] = []
        while True:
            for delta in self.step().deltas:
                if delta.id == request_id:
                    tokens += delta.tokens
                    if delta.finish:
                        return tokens, delta.finish

    def is_silent(self, seconds: float = 0.05) -> bool:
        self.socket.settimeout(seconds)
        try:
            return not self._inbox and not self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)

    @property
    def ended(self) -> bool:
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self.socket.close()
        self._thread.join(PATIENCE)
        self.theirs.close()
