"""How fast it goes just now: what was added over the last seconds, cheap to write at every step."""

from collections import deque

WINDOW_SECONDS = 5.0
SLICE_SECONDS = 0.5


class Rates:
    """Two sums over a sliding window: prompt tokens that were computed, and tokens that were generated."""

    def __init__(self) -> None:
        self._slices: deque[list[float]] = deque()
        """[beginning, prefill, decode], oldest first."""
        self._next = 0.0
        """When the newest slice ends."""

    def add(self, now: float, prefill: int, decode: int) -> None:
        """Note what a step that ended at `now` has done; `now` never goes back."""
        if now >= self._next:
            self._slices.append([now, 0, 0])
            self._next = now + SLICE_SECONDS
            while self._slices[0][0] < now - WINDOW_SECONDS - SLICE_SECONDS:
                self._slices.popleft()
        newest = self._slices[-1]
        newest[1] += prefill
        newest[2] += decode

    def read(self, now: float) -> tuple[float, float]:
        """Prefill and decode tokens per second, over the window or since work began in it, at least one slice."""
        recent = [each for each in self._slices if each[0] >= now - WINDOW_SECONDS]
        if not recent:
            return 0.0, 0.0
        seconds = max(now - recent[0][0], SLICE_SECONDS)
        return sum(each[1] for each in recent) / seconds, sum(each[2] for each in recent) / seconds
