"""Arithmetic on spans of a file: what is there, what is missing, and who fetches which part of it next.

Pure: no files, no threads. A span is (start, stop) in bytes, `stop` excluded.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Span = tuple[int, int]

SMALLEST_REQUEST = 2 << 20
LARGEST_REQUEST = 32 << 20
"""Bytes of one request. Larger ones waste fewer round trips; smaller ones end together and keep the front close."""


class Ranges:
    """A set of bytes, kept as sorted spans that neither overlap nor touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for start, stop in spans:
            self.add(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(tuple(self._spans))

    def __repr__(self) -> str:
        return f"Ranges({self._spans})"

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    @property
    def total(self) -> int:
        """How many bytes are in it."""
        return sum(stop - start for start, stop in self._spans)

    @property
    def prefix(self) -> int:
        """Where the first gap begins."""
        return self._spans[0][1] if self._spans and self._spans[0][0] == 0 else 0

    def add(self, start: int, stop: int) -> None:
        """Put the bytes from `start` to `stop` in; those that are in already stay."""
        if not 0 <= start <= stop:
            raise ValueError(f"{start} to {stop} is no span")
        if start == stop:
            return
        first = bisect_left(self._spans, start, key=lambda span: span[1])
        after = bisect_right(self._spans, stop, key=lambda span: span[0])
        touched = self._spans[first:after]
        if touched:
            start, stop = min(start, touched[0][0]), max(stop, touched[-1][1])
        self._spans[first:after] = [(start, stop)]

    def missing(self, size: int) -> list[Span]:
        """What a file of `size` bytes lacks."""
        gaps, at = list[Span](), 0
        for start, stop in self._spans:
            if start >= size:
                break
            if start > at:
                gaps.append((at, start))
            at = stop
        return [*gaps, (at, size)] if at < size else gaps

    def clipped(self, size: int) -> "Ranges":
        """Those of them below `size`."""
        return Ranges((start, min(stop, size)) for start, stop in self._spans if start < size)


class Queue:
    """The spans that nobody fetches yet, handed out from the front in pieces that get smaller towards the end.

    Smaller by guided self-scheduling (Polychronopoulos and Kuck, 1987), so that all connections end together.
    """

    def __init__(self, spans: Iterable[Span], connections: int) -> None:
        self._spans = list(spans)
        heapq.heapify(self._spans)
        self._connections = connections

    @property
    def remaining(self) -> int:
        """Bytes that wait."""
        return sum(stop - start for start, stop in self._spans)

    def take(self) -> Span | None:
        """The next span to fetch; None when nothing waits."""
        if not self._spans:
            return None
        share = self.remaining // (2 * self._connections)
        length = min(max(share, SMALLEST_REQUEST), LARGEST_REQUEST)
        start, stop = heapq.heappop(self._spans)
        if stop - start > length:
            heapq.heappush(self._spans, (start + length, stop))
            stop = start + length
        return start, stop

    def give_back(self, start: int, stop: int) -> None:
        """What a failed request didn't bring; an empty span is none."""
        if start < stop:
            heapq.heappush(self._spans, (start, stop))
