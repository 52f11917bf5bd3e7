"""Takes HTTP's chunked encoding and server-sent events apart, however the network cut them."""


class ChunkedDecoder:
    """HTTP/1.1 chunked transfer encoding in, body bytes out, however the stream was cut."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` completes."""
        self._buffer += data
        body = b""
        while self._buffer:
            if self._left == 0 and not self._next_size():
                break
            take = self._buffer[: self._left]
            # The chunk's closing CRLF is counted in `_left`, and isn't body.
            body += take[: max(0, self._left - 2)]
            self._left -= len(take)
            self._buffer = self._buffer[len(take) :]
        return body

    def _next_size(self) -> bool:
        line, separator, rest = self._buffer.partition(b"\r\n")
        if not separator:
            return False
        self._left = int(line.split(b";")[0], 16) + 2
        self._buffer = rest
        return True


class EventSplitter:
    """Body bytes in, the `data` of each server-sent event out. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes."""
        self._buffer += data.replace(b"\r\n", b"\n")
        *whole, self._buffer = self._buffer.split(b"\n\n")
        return [payload for payload in map(_event_data, whole) if payload]


def _event_data(event: bytes) -> bytes:
    lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
