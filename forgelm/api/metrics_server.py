"""`/metrics` on a port of its own, for scrapers that shall reach nothing else: no API, and no key of it needed.

A second listener on the same event loop. It answers from before the model is loaded until the server has stopped.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import uvicorn
from litestar.types import Receive, Scope, Send

from forgelm.api.auth import require_key
from forgelm.api.observed import Observed
from forgelm.errors import Unauthorized
from forgelm.metrics import CONTENT_TYPE

STOP_SECONDS = 2
"""How long a scrape may go on when the server stops."""


class Scraping(NamedTuple):
    """How `/metrics` is reached, beside what the profile says."""

    token: str = ""
    """What scrapers must send; "" for nothing."""
    listener: socket.socket | None = None
    """The port of its own."""


UNCHANGED = Scraping()


@asynccontextmanager
async def own_port(observed: Observed, listener: socket.socket | None, keys: tuple[str, ...]) -> AsyncIterator[None]:
    """Serve there for as long as the block, where there is a listener, to those who send one of `keys`, if any."""
    try:
        if listener is None:
            yield
            return
        server = _Quiet(_config(_MetricsApp(observed, keys)))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving
            listener.close()
    finally:
        observed.close()


def _config(app: "_MetricsApp") -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


class _Quiet(uvicorn.Server):
    """Leaves signals to the server that it runs beside."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Don't."""
        yield


class _MetricsApp:
    """One route, as plain ASGI."""

    def __init__(self, observed: Observed, keys: tuple[str, ...]) -> None:
        self._observed = observed
        self._keys = keys

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        if str(scope["type"]) != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] != "/metrics":
            return await _send(send, 404, b"only /metrics is here\n")
        if scope.get("method") not in ("GET", "HEAD"):
            return await _send(send, 405, b"GET it\n", ("allow", "GET, HEAD"))
        try:
            if self._keys:
                require_key(headers, self._keys)
        except Unauthorized as error:
            return await _send(send, error.status, f"{error}\n".encode(), ("www-authenticate", "Bearer"))
        return await _send(send, 200, await self._observed.scrape(), content_type=CONTENT_TYPE)


async def _send(
    send: Send, status: int, body: bytes, *extra: tuple[str, str], content_type: str = "text/plain; charset=utf-8"
) -> None:
    lines = [("content-type", content_type), ("content-length", str(len(body))), *extra]
    headers = [(name.encode(), value.encode()) for name, value in lines]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
