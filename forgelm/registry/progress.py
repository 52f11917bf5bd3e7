"""How far something is that takes long, how fast it gets on, and that it was stopped."""

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from forgelm.errors import ForgeError

WINDOW_SECONDS = 5.0
SAMPLE_SECONDS = 0.1


class Progress(msgspec.Struct, frozen=True):
    """How far a file or model is. While "verifying", `bytes` are those that were hashed."""

    bytes: int
    total: int
    state: Literal["waiting", "downloading", "verifying"]


Watch = Callable[[Progress], None]


class Cancelled(ForgeError):
    """Whoever wanted it doesn't any more; what is here of it stays."""


class Meter:
    """Told how many bytes there are, tells how many come each second. The first number is where it begins."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._last = (0.0, 0)
        """When bytes came last, and how many there are."""

    def update(self, count: int) -> None:
        """There are `count` bytes now; fewer than before begin anew."""
        now = self._clock()
        if count < self._last[1]:
            self._samples.clear()
        if not self._samples or count != self._last[1]:
            self._last = (now, count)
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, count))

    def pace(self, left: int) -> tuple[float, float | None]:
        """The rate, and the seconds that `left` bytes take at it: None where none come. Both rounded, to be shown."""
        rate = self.rate
        return round(rate, 1), round(left / rate, 1) if rate > 0 else None

    @property
    def rate(self) -> float:
        """Bytes per second; 0 when none came for as long as it looks back."""
        now = self._clock()
        came, count = self._last
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        if not self._samples or came <= now - WINDOW_SECONDS:
            return 0.0
        since, before = self._samples[0]
        return (count - before) / (now - since) if now > since else 0.0
