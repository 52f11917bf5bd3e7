"""Sequences that wait, and which of them may run next: room for them, and nothing better coming, decide.

One that shares a prefix with a running sequence waits until that has computed it, and one whose prefix is on disk until
it is read. Both are held up, and hold nobody up behind them.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice

from forgelm.engine.memory import Memory
from forgelm.engine.routes import Route
from forgelm.engine.sequence import Sequence

HEADROOM = 16
"""A request is admitted beside others only if 1/16 of the cells stay free for them to grow into."""
LOOKAHEAD = 32
"""Waiting sequences that are looked at beyond those there are slots for, because some are held up."""


class Queue:
    """Waiting sequences in order. Owned by the scheduler."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._waiting: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def append(self, sequence: Sequence) -> None:
        """A new one, at the end."""
        sequence.reusable = self._memory.route(sequence.known).depth
        self._waiting.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """One that ran, at the head."""
        self._waiting.appendleft(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def candidates(self, free: int) -> list[Sequence]:
        """The first `free` of the queue; those held up don't count, but are looked at again."""
        chosen: list[Sequence] = []
        for sequence in islice(self._waiting, free + LOOKAHEAD if free else 0):
            if sequence.held or free:
                chosen.append(sequence)
                free -= not sequence.held
        return chosen

    def admit(self, sequence: Sequence, running: SequenceOf[Sequence], *, alone: bool) -> Route | None:
        """Take `sequence` off the queue if it may run now, and say where its prefix comes from.

        `alone` lets nobody run beside others.
        """
        if _follows(sequence):
            return None
        route = self._route(sequence)
        sequence.held = route is None
        if route is None or not self._fits(sequence, route, running, alone=alone):
            return None
        self._waiting.remove(sequence)
        return route

    def _route(self, sequence: Sequence) -> Route | None:
        """Where the sequence gets its prefix from; None while more of it is being computed or read from disk."""
        memory = self._memory
        route = memory.route(sequence.known)
        sequence.reusable = max(route.depth, route.shared)
        sequence.leader, sequence.shares = route.leader, route.shared
        if route.leader is not None:
            memory.await_leader(route)
            return None
        if not route.to_fetch:
            return route
        if memory.fetching(route):
            return None
        if sequence.asked_disk:
            # What was read has been pushed out again: asking once more could go on for ever.
            return memory.route(sequence.known, disk=False)
        sequence.asked_disk = True
        memory.fetch(route)
        return None

    def _fits(self, sequence: Sequence, route: Route, running: SequenceOf[Sequence], *, alone: bool) -> bool:
        """Whether there are cells for one more, and for the head of the queue too if that is overtaken.

        Without that, a stream of short requests would keep a long one waiting for ever.
        """
        memory, head = self._memory, self._waiting[0]
        if sequence is head and not running:
            return True
        if alone:
            return False
        claimed = memory.usage.active + sum(other.pending for other in running)
        if sequence is not head:
            claimed += head.length
        cells = memory.shape.cells
        return claimed + memory.fresh(route, sequence.length) + cells // HEADROOM <= cells


def _follows(sequence: Sequence) -> bool:
    """Whether the one it waits for is still on its way to where they part: no need to look at the tree again."""
    leader = sequence.leader
    return leader is not None and leader.running and leader.computed < sequence.shares
