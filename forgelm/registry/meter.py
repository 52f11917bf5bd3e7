"""How fast bytes come, over the last seconds."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 5.0
SAMPLE_SECONDS = 0.1


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
