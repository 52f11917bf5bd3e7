"""The HTTP client that huggingface_hub works with: with timeouts, and without retries of its own.

The library asks for pages of results without any timeout and tries each six times, deaf to whoever waits; with this
client, which raises what the library doesn't catch, waiting is decided in one place (`retries`).
"""

import ssl
from typing import Any
from urllib.request import getproxies

import httpx2
from huggingface_hub import set_client_factory

from forgelm.errors import ConfigError, UpstreamFailed
from forgelm.registry.retries import Retryable, is_retryable, retry_after

TIMEOUT = httpx2.Timeout(30.0, connect=10.0)


class Session(httpx2.Client):
    """One for the process, shared by all threads."""

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = TIMEOUT
        return super().build_request(*args, **kwargs)

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        """Raises `Retryable` and `UpstreamFailed` beside what the library handles by itself."""
        try:
            response = super().send(request, **kwargs)
        except httpx2.TransportError as error:
            refuse_untrusted(error, request.url.host)
            raise Retryable(_plain(error)) from error
        if is_retryable(response.status_code):
            response.close()
            raise Retryable(said_by(response.status_code), retry_after(response.headers))
        if "next" in response.links and response.content.strip() == b"[]":
            # The library would ask for page after page, and whoever counts what is on them would never be asked.
            raise UpstreamFailed(f"{request.url.host} sends empty pages that lead to others, as no hub does.")
        return response


def _new() -> Session:
    """What huggingface_hub calls before its first request. Raises `ConfigError` for a proxy that can't be used."""
    refuse_socks()
    return Session(follow_redirects=True, timeout=TIMEOUT)


# Once and here: setting it again would close the session that other threads work with.
set_client_factory(_new)


def refuse_socks() -> None:
    """Raises `ConfigError` where the environment names a proxy of a kind that neither client here speaks to."""
    for name, address in getproxies().items():
        if name in ("http", "https", "all") and address.lower().startswith("socks"):
            raise ConfigError(f"{name.upper()}_PROXY is a SOCKS proxy, which isn't supported; set it to an HTTP proxy")


def refuse_untrusted(error: BaseException, host: str) -> None:
    """Raises `UpstreamFailed` where a server's certificate isn't trusted: it won't be the next time either."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise UpstreamFailed(
                f"{host} isn't trusted ({cause.verify_message}); if it stands behind a proxy or is your own, point "
                "SSL_CERT_FILE at the certificates to trust"
            ) from error
        cause = cause.__cause__ or cause.__context__


def said_by(status: int) -> str:
    """What a status means, for people."""
    return "too many requests" if status == 429 else f"the server fails (HTTP {status})"


def _plain(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return f"no connection ({error})"
    return f"the connection broke ({error or type(error).__name__})"
