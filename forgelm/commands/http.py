"""Talking to a running server: the client, with its key, and every failure in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from forgelm.commands.terminal import printable
from forgelm.errors import ConfigError, ForgeError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Failure(msgspec.Struct, frozen=True):
    """OpenAI's error object, as far as it is read."""

    message: str = "no reason given"


class Refusal(msgspec.Struct, frozen=True):
    """A body that says why."""

    error: Failure | str | None = None


def local_url(host: str, port: int | str) -> str:
    """Where a server of this machine that listens on `host` is reached from here."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


def own_key() -> str:
    """The key that the environment has; "" without one. Of a server's several the first is as good as any."""
    key = os.environ.get("FORGELM_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""
    return key.split(",")[0].strip()


@contextmanager
def connect(url: str, key: str = "", seconds: float | None = None) -> Iterator[Any]:
    """An `httpx.Client` for `url`, which waits `seconds` for an answer. Raises `ConfigError` for what is no address."""
    import httpx

    headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
    try:
        # A proxy for the outside world must not stand between two programs of one machine.
        direct = httpx.URL(url).host in LOOPBACK
        timeout = httpx.Timeout(seconds, connect=5.0)
        client = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=not direct)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--url {url}: {error}") from None
    with client:
        yield client


@contextmanager
def failures(url: str) -> Iterator[None]:
    """Turn what httpx raises into one line each."""
    import httpx

    try:
        yield
    except httpx.ConnectError:
        raise ForgeError(f"nothing answers at {url}; start a server with `forgelm serve`") from None
    except httpx.UnsupportedProtocol:
        raise ConfigError(f"--url {url} must begin with http:// or https://") from None
    except httpx.TimeoutException:
        raise ForgeError(f"{url} doesn't answer in time") from None
    except httpx.HTTPError as error:
        raise ForgeError(f"the connection to {url} broke off: {error}") from None


def refusal(response: Any) -> str:
    """The reason in an error response, whatever wrote it."""
    try:
        error = msgspec.json.decode(response.content, type=Refusal).error
    except msgspec.DecodeError:
        error = None
    if error is None:
        return f"{response.url} answers {response.status_code} {response.reason_phrase}"
    return f"{reason(error)} ({response.status_code})"


def reason(error: Failure | str) -> str:
    """An error's words in one line."""
    return " ".join(printable(error if isinstance(error, str) else error.message).split())
