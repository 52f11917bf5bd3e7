"""A proxy between clients and a server that records what load there is, and changes nothing.

What the server sends reaches the client byte for byte, as it comes. Of requests only the `Host` is the server's own and
the path may get the prefix that the server's URL has; nothing is added to a body. When one side hangs up, so does the
other.
"""

import asyncio
import contextlib
import os
import ssl
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from forgelm import __version__
from forgelm.bench.client import Address, Endpoint
from forgelm.bench.streams import OK, Failed, Pieces, Response, sum_up
from forgelm.bench.trace import FORMAT, ROUTES, Head, Recorded, Shapes, shape_of
from forgelm.errors import ConfigError

READ_BYTES = 1 << 16
FINISHES = ("stop", "length", "tool_calls", "function_call", "content_filter", "error", "abort")
BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
)


class Recording:
    """The file, and what is written into it. Use as a context manager. Raises `ConfigError` when it exists already."""

    def __init__(self, path: Path, *, text: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        """`text` writes the bodies too."""
        try:
            # Traces are their users' business: nobody else may read them.
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)
        except FileExistsError:
            raise ConfigError(f"{path} exists already: a trace is one recording") from None
        except OSError as error:
            raise ConfigError(f"the trace can't be written to {path}: {error.strerror}") from None
        self._text = text
        self._clock = clock
        self._begun = clock()
        self._shapes = Shapes()
        self._number = 0
        self.written = 0
        """Requests."""
        self.problem = ""
        """Why nothing is written any more; what passes through passes all the same."""
        self._write(Head(FORMAT, datetime.now(UTC).isoformat(timespec="seconds"), __version__, text))

    def __enter__(self) -> "Recording":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self, at: float, path: str, data: bytes) -> Recorded | None:
        """A request that arrived at `at` by the clock; None for one that doesn't generate."""
        route = next((route for route in ROUTES if path.partition("?")[0].endswith(route)), None)
        if route is None:
            return None
        try:
            body = msgspec.json.decode(data)
            if not isinstance(body, dict):
                return None
            found = shape_of(self._number, at - self._begun, route, body, self._shapes)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        self._number += 1
        return msgspec.structs.replace(found, body=body) if self._text else found

    def end(self, request: Recorded, began: float, response: Response) -> None:
        """It has been answered, or the connection has ended."""
        self._write(self._answered(request, began, response))
        self.written += not self.problem

    def _answered(self, request: Recorded, began: float, response: Response) -> Recorded:
        if not response.headers or not response.body:
            return msgspec.structs.replace(request, status=response.status if response.headers else 0)
        seconds = response.body[-1][0] - began
        found = msgspec.structs.replace(request, status=response.status, seconds=round(seconds, 6))
        if response.status != OK:
            return found
        try:
            answer = sum_up(_plain(response), streamed=response.is_stream)
        except Failed:
            return found
        self._shapes.remember(answer.text, request.number)
        return msgspec.structs.replace(
            found,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.tokens,
            counted=answer.counted,
            finish=answer.finish if answer.finish in FINISHES else "",
            ttft=round(answer.arrivals[0] - began, 6) if answer.arrivals and answer.streamed else None,
        )

    def _write(self, line: Any) -> None:
        if self.problem:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            self.problem = error.strerror or str(error)


def _plain(response: Response) -> Pieces:
    """The body's pieces, unpacked where the client asked for compressed ones. Raises `Failed` for unknown ways."""
    encoding = response.headers.get(b"content-encoding", b"identity").lower()
    if encoding == b"identity":
        return response.body
    if encoding not in (b"gzip", b"deflate"):
        raise Failed("unknown encoding")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        return [(at, unpack.decompress(data)) for at, data in response.body]
    except zlib.error:
        raise Failed("unknown encoding") from None


class Proxy:
    """Listens, and passes on to one server."""

    def __init__(self, endpoint: Endpoint, recording: Recording) -> None:
        """Raises `ConfigError` for an `endpoint` that is no address."""
        self._address = Address(endpoint)
        self._recording = recording
        self._prefix = urlsplit(endpoint.base).path.removesuffix("/v1")
        self._clients: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Begin. Raises `ConfigError` when the address can't be listened on."""
        try:
            return await asyncio.start_server(self._client, host, port)
        except OSError as error:
            raise ConfigError(f"{host}:{port} can't be listened on: {error.strerror or error}") from None

    async def close(self) -> None:
        """Hang up on whoever is connected."""
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._connected(reader, writer)
        except (OSError, asyncio.CancelledError):
            # Either side hung up, or it is over: there is nobody to tell.
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = self._address
        try:
            theirs = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
        except (OSError, ssl.SSLError) as error:
            said = {"error": {"message": f"the server can't be reached: {error}", "type": "server_error"}}
            body = msgspec.json.encode(said)
            writer.write(BAD_GATEWAY % (len(body), body))
            await writer.drain()
            return
        relay = _Relay(self._recording, address.authority, self._prefix)
        try:
            await _first(relay.requests(reader, theirs[1]), relay.responses(theirs[0], writer))
        finally:
            relay.over()
            theirs[1].close()


async def _first(*ways: Any) -> None:
    """Until one of them ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Relay:
    """One client's connection and the one to the server."""

    def __init__(self, recording: Recording, authority: str, prefix: str) -> None:
        self._recording = recording
        self._authority = authority.encode()
        self._prefix = prefix.encode()
        self._parser = httptools.HttpRequestParser(self)
        self._out: list[bytes] = []
        self._begin()
        self._open: tuple[Recorded, float] | None = None
        self._response: Response | None = None

    def _begin(self) -> None:
        self._path = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._chunked = False

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the client to the server, until the client hangs up or doesn't speak HTTP."""
        while data := await reader.read(READ_BYTES):
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                return
            finally:
                writer.writelines(self._out)
                self._out.clear()
            await writer.drain()

    async def responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the server to the client, until the server hangs up."""
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            self._tap(data)
            await writer.drain()

    def _tap(self, data: bytes) -> None:
        if self._response is None:
            return
        try:
            self._response.feed(time.perf_counter(), data)
        except Failed:
            self.over()
        if self._response is not None and self._response.complete:
            self.over()

    def over(self) -> None:
        """Write down the request that is open."""
        if self._open is not None and self._response is not None:
            self._recording.end(*self._open, self._response)
        self._open = self._response = None

    # --- what httptools calls ---

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        self._chunked = self._chunked or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower())

    def on_headers_complete(self) -> None:
        line = b"%s %s%s HTTP/%s" % (
            self._parser.get_method(), self._prefix, self._path, self._parser.get_http_version().encode(),
        )  # fmt: skip
        pairs = ((name, self._authority if name.lower() == b"host" else value) for name, value in self._headers)
        self._out.append(b"\r\n".join((line, *(b"%s: %s" % pair for pair in pairs), b"", b"")))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._out.append(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)

    def on_message_complete(self) -> None:
        if self._chunked:
            self._out.append(b"0\r\n\r\n")
        self.over()
        now = time.perf_counter()
        if self._parser.get_method() == b"POST":
            with contextlib.suppress(UnicodeDecodeError):
                request = self._recording.begin(now, self._path.decode(), b"".join(self._body))
                if request is not None:
                    self._open, self._response = (request, now), Response()
        self._begin()
