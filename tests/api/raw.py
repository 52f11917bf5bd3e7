"""HTTP by hand, for what a polite client never does: leave early, read slowly, send nonsense."""

import json
import re
import socket
import struct
from typing import Any

from tests.api.live import CHAT, WAIT_SECONDS, message


class Raw:
    """One connection. Use as a context manager."""

    def __init__(self, port: int, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_SECONDS)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.received = b""

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> "Raw":
        """Write bytes as they are."""
        self.socket.sendall(data)
        return self

    def post(self, body: dict[str, Any], path: str = CHAT) -> "Raw":
        """Send a whole request."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return self.send(head.encode() + data)

    def chat(self, content: str = "Hello", **fields: Any) -> "Raw":
        """Send a whole chat request."""
        return self.post(message(content, **fields))

    def read_until(self, wanted: bytes, count: int = 1) -> bytes:
        """Read until `wanted` has come `count` times; everything received so far."""
        while self.received.count(wanted) < count:
            data = self.socket.recv(65536)
            assert data, f"closed before {wanted!r}: {self.received[-500:]!r}"
            self.received += data
        return self.received

    def read_all(self) -> bytes:
        """Read until the server closes."""
        while data := self.socket.recv(65536):
            self.received += data
        return self.received

    def stream_text(self) -> str:
        """The text of all events that have been received."""
        lines = self.received.decode().split("\n")
        choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
        return "".join(choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices)

    def response(self) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the one response, which has a content-length."""
        self.read_until(b"\r\n\r\n")
        head, _, body = self.received.partition(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert size, head
        while len(body) < int(size[1]):
            body += self.socket.recv(65536)
        return int(head.split()[1]), json.loads(body)

    def leave(self, *, rudely: bool = False) -> None:
        """Close; `rudely` resets the connection instead of ending it."""
        if rudely:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
