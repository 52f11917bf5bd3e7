"""How far something is that takes long, and that it was stopped: for whoever tells it and whoever hears it."""

from collections.abc import Callable
from typing import Literal

import msgspec

from forgelm.errors import ForgeError


class Progress(msgspec.Struct, frozen=True):
    """How far a file or model is. While "verifying", `bytes` are those that were hashed."""

    bytes: int
    total: int
    state: Literal["waiting", "downloading", "verifying"]


Watch = Callable[[Progress], None]


class Cancelled(ForgeError):
    """Whoever wanted it doesn't any more; what is here of it stays."""
