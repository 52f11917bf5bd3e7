"""The way to the hub's client, which is loaded when the hub is needed first.

It is two thirds of a process's memory and start, and a machine that fetches nothing needs none of it.
"""

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forgelm.errors import ConfigError

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub


def open_hub(*, endpoint: str | None = None, offline: bool = False) -> "Hub":
    """The hub; what isn't given is what the environment says. Raises `ConfigError` for a wrong address."""
    _check(os.environ.get("HF_ENDPOINT", ""))
    from forgelm.registry.hub import Hub

    return Hub(endpoint=endpoint, offline=offline)


def _check(address: str) -> None:
    # huggingface_hub takes the variable apart while it is imported, and what it can't read is a traceback.
    try:
        _ = urlsplit(address).port
    except ValueError as error:
        raise ConfigError(f"HF_ENDPOINT is {address!r}, which is no address: {error}") from None
