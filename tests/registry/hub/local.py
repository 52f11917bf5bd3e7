"""A hub on this machine, for tests and benchmarks: two ports of 127.0.0.1, one the hub's, one its CDN's."""

import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.registry.hub import api, cdn
from tests.registry.hub.catalog import Catalog, Content, Model
from tests.registry.hub.faults import Faults, Log, Origin
from tests.registry.hub.serving import Handler, Server


class CdnHandler(Handler):
    """Requests to the CDN's port."""

    origin: Origin = "cdn"


class LocalHub:
    """Serves from `start` to `stop`, or in a `with` statement.

    `endpoint` and `cdn` are what its links name; with names that don't exist it can only be reached as a proxy, which
    both of its ports can be used as. With `certificate`, a PEM file of a certificate and its key, both speak TLS.
    """

    def __init__(
        self, folder: Path, *, endpoint: str = "", cdn: str = "", certificate: Path | None = None, page: int = 1000
    ) -> None:
        self.catalog = Catalog(folder)
        self.faults = Faults()
        self.log = Log()
        self.tokens: set[str] = set()
        """Tokens of accounts; any other is refused."""
        self.swaps: dict[str, Content] = {}
        """sha256 → what the CDN sends instead."""
        self.page = page
        """Entries of one page."""
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
        self._servers = (Server(self, Handler, context), Server(self, CdnHandler, context))
        scheme = "https" if certificate else "http"
        first, second = (f"{scheme}://127.0.0.1:{server.server_port}" for server in self._servers)
        self.proxy = first
        self.endpoint = endpoint or first
        self.cdn = cdn or second

    def __enter__(self) -> "LocalHub":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        self.faults.release.set()
        for server in self._servers:
            server.stop()

    def add(self, id: str, files: Mapping[str, bytes | Path], **facts: Any) -> Model:
        """Put a repository on it; `facts` are fields of `Model`."""
        return self.catalog.add(id, files, **facts)

    def origin_of(self, netloc: str) -> Origin:
        """Whose requests these are that name this host and port."""
        return "cdn" if netloc == urlsplit(self.cdn).netloc else "hub"

    def route(self, handler: Handler, origin: Origin) -> None:
        """Answer one request."""
        (cdn if origin == "cdn" else api).route(handler)

    def signed(self, content: Content) -> str:
        """A URL of the CDN for these bytes, good for a while."""
        expires = int(time.time() + self.faults.expires_in)
        signed = cdn.signature(content.sha256, expires, self.faults.generation)
        return f"{self.cdn}/repos/{content.sha256}?Expires={expires}&Signature={signed}&Key-Pair-Id=LOCAL"
