"""A client for any OpenAI-compatible server that costs almost nothing while it measures.

On two cores the client competes with the server it measures. So each request has a connection of its own on a bare
asyncio transport, over TLS where the URL says so, and what arrives is only stamped and kept: about 25 µs of CPU per
token with decoding it afterwards, where httpx takes 175 while it measures (`bench/client_cpu.py`). Connecting isn't
part of a latency, as for clients that keep their connections, unless a request is late by it. Knows nothing of
workloads.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from forgelm.bench.streams import DONE, OK, Answer, Failed, Response, parse
from forgelm.errors import ConfigError, ForgeError

TIMEOUT = 600.0
"""Seconds after which an answer doesn't come any more."""
CONNECT_TIMEOUT = 20.0
DONE_LINE = b"data: " + DONE
LAST_CHUNK = b"0\r\n\r\n"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TAIL = 32
"""Bytes kept to find marks that the network has cut in two."""


@dataclass(frozen=True)
class Endpoint:
    """A server's API. `url` is what OpenAI's clients call the base URL; `/v1` is added where it has no path."""

    url: str
    key: str = ""
    model: str = ""
    """"" is the first that the server lists."""

    @property
    def base(self) -> str:
        """The URL with the `/v1` that is so easily left out, without a slash at its end."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    @property
    def origin(self) -> str:
        """The URL without its path, where servers have routes of their own."""
        parts = urlsplit(self.base)
        return f"{parts.scheme}://{parts.netloc}"


class Address:
    """Where connections go. Raises `ConfigError` for what is no URL of a server."""

    def __init__(self, endpoint: Endpoint) -> None:
        parts = urlsplit(endpoint.base)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(f"{endpoint.url} is no address of a server: it begins with http:// or https://")
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = name if port is None else f"{name}:{port}"


class Exchange(asyncio.Protocol):
    """One request and the stamped bytes of its response, on one connection."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._plain: Response | None = None
        self._transport: asyncio.Transport | None = None
        self.sent = 0.0
        """When it was written, the connection being there already."""
        self.pieces: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By contract; uvloop's own transports don't derive from it.
        self._transport = cast(asyncio.Transport, transport)
        self.sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        if len(self.pieces) == 1 and b"text/event-stream" not in data:
            self._plain = Response()
        if self._plain is not None:
            self._follow(data)
            return
        tail = self._tail + data
        if DONE_LINE in tail or tail.endswith(LAST_CHUNK):
            self.cut()
        self._tail = tail[-_TAIL:]

    def _follow(self, data: bytes) -> None:
        """A server may keep the connection of an answer that isn't streamed: its length says when it is whole."""
        assert self._plain is not None
        try:
            self._plain.feed(0.0, data)
        except Failed:
            self.cut()
        if self._plain.complete:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def cut(self) -> None:
        """Hang up: some servers end only once their clients have."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass
class Sent:
    """A request that has been sent, and what came of it, not decoded yet."""

    sent: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    failure: Failed | None = None

    def answer(self) -> Answer:
        """Decode it. Raises `Failed`."""
        if self.failure is not None:
            raise self.failure
        return parse(self.pieces)

    @property
    def refused(self) -> bool:
        """Whether it failed, as far as can be told at a glance."""
        first = self.pieces[0][1] if self.pieces else b""
        return self.failure is not None or first[9:12] != str(OK).encode()


class Client:
    """Sends requests to one server."""

    def __init__(self, endpoint: Endpoint, timeout: float = TIMEOUT) -> None:
        self.endpoint = endpoint
        self._address = Address(endpoint)
        self._timeout = timeout

    async def send(self, route: str, body: Mapping[str, Any] | bytes) -> Sent:
        """POST to a route below the base URL and wait for the end of the answer. Failures are in what it returns."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        begun = time.perf_counter()
        try:
            exchange = await self._connect(self._head(route, len(data)) + data)
        except (OSError, TimeoutError) as error:
            return Sent(begun, failure=Failed(connection_problem(error), str(error)))
        try:
            async with asyncio.timeout(self._timeout):
                await exchange.ended
        except TimeoutError:
            return Sent(exchange.sent, exchange.pieces, Failed("timeout", f"no end within {self._timeout:.0f} s"))
        finally:
            exchange.cut()
        return Sent(exchange.sent, exchange.pieces)

    async def _connect(self, request: bytes) -> Exchange:
        address, loop = self._address, asyncio.get_running_loop()
        exchanges: list[Exchange] = []

        def make() -> Exchange:
            exchanges.append(Exchange(request))
            return exchanges[-1]

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, exchange = await loop.create_connection(make, address.host, address.port, ssl=address.tls)
                return exchange
        except BaseException:
            for exchange in exchanges:
                exchange.cut()
            raise

    def _head(self, route: str, length: int) -> bytes:
        key = f"Authorization: Bearer {self.endpoint.key}\r\n" if self.endpoint.key else ""
        return (
            f"POST {self._address.path}{route} HTTP/1.1\r\nHost: {self._address.authority}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n{key}"
            "Accept: text/event-stream, application/json\r\nConnection: close\r\n\r\n"
        ).encode()


def connection_problem(error: BaseException) -> str:
    """The kind that a failed connection is counted as."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "connection timeout"
    if isinstance(error, ssl.SSLError):
        return "TLS"
    return "connection"


async def reach(endpoint: Endpoint) -> None:
    """Connect and hang up. Raises `ForgeError` in one line when nobody can be reached there."""
    address = Address(endpoint)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
    except (OSError, TimeoutError) as error:
        hint = "; start a server with `forgelm serve`" if address.host in LOOPBACK else ""
        raise ForgeError(f"nothing answers at {endpoint.base}: {_why(error)}{hint}") from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _why(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted ({error.verify_message})"
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_TIMEOUT:.0f} s"
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused"
    return getattr(error, "strerror", None) or str(error)
