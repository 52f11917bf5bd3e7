"""API keys: `Authorization: Bearer` or `X-Api-Key`, compared in constant time. Probes and metrics stay open,
and so does the page that asks for the key."""

import hmac
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from forgelm.config import Metrics
from forgelm.errors import ConfigError, Unauthorized

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/metrics"})

OPEN = "open"
"""In a handler's options: it tells nobody anything, and wants no key."""

Connection = ASGIConnection[Any, Any, Any, Any]
Guard = Callable[[Connection, BaseRouteHandler], None]


def key_guard(keys: tuple[str, ...]) -> Guard:
    """A Litestar guard that wants one of `keys` on every path that isn't open."""

    def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        if connection.scope["path"] not in OPEN_PATHS and OPEN not in handler.opt:
            require_key(connection.headers, keys)

    return guard


def scrape_keys(metrics: Metrics, token: str, keys: tuple[str, ...], *, own_port: bool) -> tuple[str, ...]:
    """What a scraper must send one of; empty where it needs nothing. `keys` are the API's."""
    if token:
        return (token, *keys)
    return keys if metrics.keyed and not own_port else ()


def read_token(path: str) -> str:
    """The token of scrapers, from its file; "" for no file. Raises `ConfigError`."""
    if not path:
        return ""
    try:
        token = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't text"
        raise ConfigError(f"the metrics token file {path} can't be read: {why}") from None
    if not token or len(token.split()) > 1:
        raise ConfigError(f"the metrics token file {path} must hold one token, and nothing else")
    return token


def require_key(headers: Mapping[str, str], keys: Iterable[str]) -> None:
    """Raise `Unauthorized` unless the request has one of `keys` in its headers, whose names are in lower case."""
    # Headers are read as Latin-1; the bytes are what was sent.
    sent = _sent_key(headers).encode("latin-1")
    # Every key is compared, so that the time tells nothing of which one came close.
    if sum(hmac.compare_digest(sent, key.encode()) for key in keys) == 0:
        problem = "wrong API key" if sent else "this server wants an API key"
        raise Unauthorized(f"{problem}: send `Authorization: Bearer KEY` or `X-Api-Key: KEY`")


def _sent_key(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key", "").strip()
