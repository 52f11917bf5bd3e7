"""How far something is that takes long, and that it was stopped. What tells it and who hears it need nothing else of
each other."""

from collections.abc import Callable
from typing import Literal

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far something is."""

    bytes: int
    total: int
    state: Literal["waiting", "downloading", "verifying"]
    """Waiting is for another process that is at it, or for the hub."""


Watch = Callable[[Progress], None]


class Cancelled(Exception):
    """Somebody asked to stop."""
