"""Bytes of a file over HTTP: one request, one body, read as it comes.

urllib3, since its threads bring 0.8 GB/s to the disk where httpx2's bring 0.45 (two cores, 1 GB from a local server,
hashed meanwhile; curl, which hashes nothing: 0.9), and since it keeps connections, verifies TLS and speaks to proxies
as `http.client` doesn't by itself.
"""

import contextlib
import os
import socket
import ssl
import time
from functools import cache
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError, ReadTimeoutError

from forgelm import __version__
from forgelm.registry.retries import Limits, Retryable
from forgelm.registry.session import refuse_socks, refuse_untrusted

SMALLEST_READ = 16 << 10
SOON, LATE = 0.05, 0.25
"""Seconds that a read should take: shorter ones cost more CPU, longer ones keep whoever wants to stop waiting."""


class Body:
    """An answer whose content is still to come."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._amount = SMALLEST_READ
        self.status = response.status
        self.headers = response.headers

    @property
    def etag(self) -> str:
        """The strong ETag, quotes included; "" where there is none."""
        etag = self.headers.get("etag") or ""
        return etag if etag.startswith('"') else ""

    def read(self, most: int) -> bytes:
        """The next bytes, as many as come in a moment; b"" at the end. Raises `Retryable` if it broke off before."""
        began = time.monotonic()
        try:
            # What is slow is taken as it comes: of a read that waits for more, a silence would take all.
            slow = self._amount == SMALLEST_READ
            read = self._response.read1 if slow else self._response.read
            piece = read(min(self._amount, most), decode_content=False)
        except HTTPError as error:
            raise Retryable(_plain(error)) from error
        seconds = time.monotonic() - began
        if seconds < SOON:
            self._amount = min(2 * self._amount, most)
        elif seconds > LATE:
            self._amount = max(self._amount // 2, SMALLEST_READ)
        return piece

    def close(self) -> None:
        """Keep the connection if all of the body was read, else end it."""
        self._response.close()

    def interrupt(self) -> None:
        """End a read that waits in another thread."""
        with contextlib.suppress(OSError, AttributeError):
            # The socket's own method: that of a TLS socket would take its state from under the reader.
            socket.socket.shutdown(self._response.connection.sock, socket.SHUT_RDWR)  # type: ignore[union-attr]


class Connections:
    """They are kept, at most so many to one host. Usable from several threads."""

    def __init__(self, limits: Limits, connections: int = 1) -> None:
        self._connections = connections
        self._timeout = urllib3.Timeout(connect=limits.connect, read=limits.stall)
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._context = _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    def get(self, url: str, headers: dict[str, str]) -> Body:
        """Ask for `url`; redirects are answers like others. Raises `Retryable`, and `UpstreamFailed` without trust."""
        host = urlsplit(url).hostname or ""
        said = {"User-Agent": f"forgelm/{__version__}", "Accept-Encoding": "identity", **headers}
        try:
            response = self._pool(url, host).request(
                "GET", url, headers=said, timeout=self._timeout, preload_content=False, redirect=False, retries=False
            )
        except HTTPError as error:
            refuse_untrusted(error, host)
            raise Retryable(_plain(error)) from error
        return Body(response)

    def close(self) -> None:
        """End all connections that nobody reads from."""
        for pool in self._pools.values():
            pool.clear()

    def _pool(self, url: str, host: str) -> urllib3.PoolManager:
        proxies = {} if proxy_bypass(host) else getproxies()
        proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all") or ""
        if proxy not in self._pools:
            self._pools[proxy] = self._through(proxy)
        return self._pools[proxy]

    def _through(self, proxy: str) -> urllib3.PoolManager:
        if not proxy:
            return urllib3.PoolManager(maxsize=self._connections, ssl_context=self._context)
        refuse_socks()
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        login, _, address = parts.netloc.rpartition("@")
        return urllib3.ProxyManager(
            urlunsplit((parts.scheme, address, "", "", "")),
            proxy_headers=urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None,
            maxsize=self._connections,
            ssl_context=self._context,
            proxy_ssl_context=self._context,
        )


@cache
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Whom to trust, as huggingface_hub's client has it: by these two variables, else the system's."""
    return httpx2.create_ssl_context()


def _plain(error: HTTPError) -> str:
    if isinstance(error, ConnectTimeoutError | ReadTimeoutError):
        return "no answer in time"
    if isinstance(error, NameResolutionError | NewConnectionError):
        return "no connection (the name isn't known, or nobody listens there)"
    return "the connection broke off"
