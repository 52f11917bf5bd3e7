"""API keys: `Authorization: Bearer` or `X-Api-Key`, compared in constant time. Probes and metrics stay open,
and so does the page that asks for the key."""

import hmac
from collections.abc import Callable
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from forgelm.errors import Unauthorized

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/metrics"})

OPEN = "open"
"""In a handler's options: it tells nobody anything, and wants no key."""

Connection = ASGIConnection[Any, Any, Any, Any]
Guard = Callable[[Connection, BaseRouteHandler], None]


def key_guard(keys: tuple[str, ...]) -> Guard:
    """A Litestar guard that wants one of `keys` on every path that isn't open."""
    encoded = [key.encode() for key in keys]

    def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        if connection.scope["path"] in OPEN_PATHS or OPEN in handler.opt:
            return
        # Litestar reads headers as Latin-1; the bytes are what was sent.
        sent = _sent_key(connection).encode("latin-1")
        # Every key is compared, so that the time tells nothing of which one came close.
        if sum(hmac.compare_digest(sent, key) for key in encoded) == 0:
            problem = "wrong API key" if sent else "this server wants an API key"
            raise Unauthorized(f"{problem}: send `Authorization: Bearer KEY` or `X-Api-Key: KEY`")

    return guard


def _sent_key(connection: Connection) -> str:
    authorization = connection.headers.get("authorization", "")
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return connection.headers.get("x-api-key", "").strip()
