"""What both of the local hub's origins share: answering, and sending a file or a range of it by `sendfile`."""

import os
import re
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.registry.hub.catalog import Content
from tests.registry.hub.faults import Origin, Seen

if TYPE_CHECKING:
    from tests.registry.hub.local import LocalHub

LARGE, SMALL = 8 << 20, 32 << 10
"""Bytes handed to the kernel at once: as many as it takes, and with faults in play, when it matters where it stops."""
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Server(ThreadingHTTPServer):
    """One origin. Ending it ends its connections too."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: "LocalHub", handler: type["Handler"], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub
        self.context = context
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread, so that a client slow at its handshake holds up nobody."""
        if self.context is not None:
            try:
                request = self.context.wrap_socket(request, server_side=True)
            except OSError:
                return
        self._open.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self._open.discard(request)
            if self.context is not None:
                request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are this server's daily bread."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class Handler(BaseHTTPRequestHandler):
    """Answers requests to one origin."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    origin: Origin = "hub"
    server: Server
    seen: Seen

    def log_message(self, format: str, *args: Any) -> None:
        """Nowhere: `Log` has them."""

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        # A client that takes us for its proxy names the host it means.
        origin = self.server.hub.origin_of(split.netloc) if split.netloc else self.origin
        self.path = split._replace(scheme="", netloc="").geturl()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen = Seen(origin, self.command, self.path, headers, self.client_address[1])
        self.server.hub.log.add(self.seen)
        faults = self.server.hub.faults
        if faults.latency:
            time.sleep(faults.latency)
        if failure := faults.failure(origin, self.path):
            self.answer(failure.status, failure.body, **failure.headers)
        else:
            self.server.hub.route(self, origin)

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """An answer with a body that is no file. Underscores in the headers' names are dashes."""
        self.begin(status, {"Content-Type": "application/json; charset=utf-8", **headers}, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self, status: int, headers: dict[str, str], length: int) -> None:
        """The status line and all headers."""
        self.seen.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def answer_file(self, content: Content, etag: str, **headers: str) -> None:
        """The file, or the range of it that the request asks for."""
        faults = self.server.hub.faults
        self.seen.file = content.sha256
        start, stop, status = self._range(content, etag)
        said = {"Content-Type": "application/octet-stream", **headers}
        if not faults.no_etag:
            said["ETag"] = f"W/{etag}" if faults.weak else etag
        if faults.ranges:
            said["Accept-Ranges"] = "bytes"
        if status == 416:
            self.begin(416, {**said, "Content-Range": f"bytes */{content.size}"}, 0)
            return
        start, stop = start + faults.range_shift, stop + faults.range_shift
        if status == 206:
            total = content.size if faults.range_total is None else faults.range_total
            said["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        self.begin(status, said, stop - start)
        if self.command != "HEAD":
            self._send(content, start, stop)

    def _range(self, content: Content, etag: str) -> tuple[int, int, int]:
        """First byte, the one after the last, and the status that goes with them."""
        found = RANGE.fullmatch(self.headers.get("Range", ""))
        same = self.headers.get("If-Range", etag) == etag
        if not found or not same or not self.server.hub.faults.ranges:
            return 0, content.size, 200
        start = int(found[1])
        stop = min(int(found[2]) + 1, content.size) if found[2] else content.size
        return (start, stop, 206) if start < stop else (0, 0, 416)

    def _send(self, content: Content, start: int, stop: int) -> None:
        faults = self.server.hub.faults
        at = start
        with content.path.open("rb") as file:
            if faults.corrupt and faults.spend("corrupt"):
                wrong = bytes([file.read(1)[0] ^ 0xFF]) if start == 0 else b"\0"
                self.wfile.write(wrong)
                self.seen.sent += 1
                at += 1
            while at < stop:
                ends = [edge for edge in (self._cut(at - start), self._hang(at - start)) if edge is not None]
                small = faults.rate or faults.cut_after is not None or faults.hang_after is not None
                count = min([stop - at, SMALL if small else LARGE, *ends])
                faults.pace(count)
                sent = self._hand_over(file.fileno(), at, count)
                if not sent:
                    return
                at += sent
                self.seen.sent += sent
                self._change()

    def _hand_over(self, file: int, at: int, count: int) -> int:
        if self.server.context is None:
            return os.sendfile(self.connection.fileno(), file, at, count)
        return self.connection.send(os.pread(file, min(count, 1 << 20), at))

    def _cut(self, done: int) -> int | None:
        """How many bytes are left before this connection is closed; none at all where it is to be now."""
        faults = self.server.hub.faults
        if faults.cut_after is None or faults.cuts == 0:
            return None
        if done >= faults.cut_after and faults.spend("cuts"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        return max(faults.cut_after - done, 1)

    def _hang(self, done: int) -> int | None:
        faults = self.server.hub.faults
        if faults.hang_after is None or faults.hangs == 0:
            return None
        if done >= faults.hang_after and faults.spend("hangs"):
            faults.release.wait()
            raise ConnectionAbortedError
        return max(faults.hang_after - done, 1)

    def _change(self) -> None:
        faults = self.server.hub.faults
        if faults.change_after is not None and self.server.hub.log.sent() >= faults.change_after:
            faults.change_after, faults.etag = None, "changed"
