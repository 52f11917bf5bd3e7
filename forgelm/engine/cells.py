"""Which KV cells are taken and who shares them: llama.cpp's unified cache, counted along so that plans can be made.

A slot's cells are a chain of segments. Forking shares segments, and a segment is split where a fork or a cut ends
inside it. A cell is free when no slot holds it, active when a running sequence does, and cached otherwise.
"""

from collections.abc import Iterator


class _Segment:
    """Consecutive cells that the same slots hold."""

    __slots__ = ("active", "length", "owners")

    def __init__(self, length: int, owners: set[int], active: int) -> None:
        self.length = length
        self.owners = owners
        self.active = active
        """How many owners are running."""


class CellLedger:
    """Counts cells, whoever computed them; knows no tokens."""

    def __init__(self, cells: int, slots: int) -> None:
        self.cells = cells
        self.used = 0
        """Cells that any slot holds."""
        self.active = 0
        """Cells that a running slot holds."""
        self._chains: list[list[_Segment]] = [[] for _ in range(slots)]
        self._running: set[int] = set()

    @property
    def cached(self) -> int:
        """Cells held by slots that don't run, and by no other."""
        return self.used - self.active

    def length(self, slot: int) -> int:
        """Cells of `slot`."""
        return sum(segment.length for segment in self._chains[slot])

    def exclusive(self, slot: int) -> int:
        """Cells that wiping `slot` would free."""
        return sum(segment.length for segment in self._chains[slot] if len(segment.owners) == 1)

    def active_prefix(self, slot: int, length: int) -> int:
        """How many of the first `length` cells of `slot` a running sequence holds."""
        total = 0
        for segment, taken in self._first(slot, length):
            total += taken if segment.active else 0
        return total

    def extend(self, slot: int, count: int) -> None:
        """`count` new cells at the end of `slot`."""
        chain = self._chains[slot]
        running = slot in self._running
        if chain and len(chain[-1].owners) == 1:
            chain[-1].length += count
        else:
            chain.append(_Segment(count, {slot}, int(running)))
        self.used += count
        self.active += count if running else 0

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the empty `target` share the first `length` cells of `source`."""
        self._split(source, length)
        running = target in self._running
        for segment, _ in self._first(source, length):
            segment.owners.add(target)
            self._chains[target].append(segment)
            if running:
                self._count_in(segment)

    def trim(self, slot: int, length: int = 0) -> None:
        """Keep the first `length` cells of `slot`."""
        self._split(slot, length)
        kept = [segment for segment, _ in self._first(slot, length)]
        for segment in self._chains[slot][len(kept) :]:
            segment.owners.remove(slot)
            if slot in self._running:
                self._count_out(segment)
            if not segment.owners:
                self.used -= segment.length
        self._chains[slot] = kept

    def start(self, slot: int) -> None:
        """The slot's sequence runs from now on."""
        self._running.add(slot)
        for segment in self._chains[slot]:
            self._count_in(segment)

    def stop(self, slot: int) -> None:
        """The slot's sequence runs no more; its cells stay."""
        self._running.remove(slot)
        for segment in self._chains[slot]:
            self._count_out(segment)

    def _count_in(self, segment: _Segment) -> None:
        segment.active += 1
        if segment.active == 1:
            self.active += segment.length

    def _count_out(self, segment: _Segment) -> None:
        segment.active -= 1
        if segment.active == 0:
            self.active -= segment.length

    def _first(self, slot: int, length: int) -> Iterator[tuple[_Segment, int]]:
        """The segments that hold the first `length` cells, each with how many of those it holds."""
        for segment in self._chains[slot]:
            if length <= 0:
                return
            yield segment, min(segment.length, length)
            length -= segment.length

    def _split(self, slot: int, length: int) -> None:
        """Make `length` a border between two segments of `slot`, for all who share them."""
        for segment, taken in list(self._first(slot, length)):
            length -= taken
            if length == 0 and taken < segment.length:
                rest = _Segment(segment.length - taken, set(segment.owners), segment.active)
                segment.length = taken
                for owner in segment.owners:
                    chain = self._chains[owner]
                    chain.insert(chain.index(segment) + 1, rest)
