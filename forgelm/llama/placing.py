"""Where llama.cpp puts tokens: its own rules for physical batches and KV cells, followed along.

It tells neither how many ubatches a decode took nor how high its cells are filled, and both decide what a decode costs.
The rules are those of `llama_batch_allocr::split_*` and `llama_kv_cache::find_slot`, `seq_rm` and `seq_cp` of the
commit that we build; `LLAMA_KV_CACHE_DEBUG` has it log the same figures, which is how the tests know that these are
right. After a decode that failed half-way its search may begin elsewhere than ours, until memory is empty again.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int32]
Run = tuple[int, int]
"""(slot, rows): consecutive rows of one sequence."""


@dataclass(frozen=True)
class Rules:
    """What the splitting and the cells depend on."""

    cells: int
    """Of one pool."""
    slots: int
    n_ubatch: int
    unified: bool = True
    """One pool for all slots, else one for each."""
    recurrent: bool = False
    """Some layers keep a recurrent state: a ubatch has as many rows of each sequence in it."""
    kept_tail: int = 0
    """The last so many rows of a sequence stay in one ubatch, so that they can be rolled back."""
    attention: bool = True
    """There are KV cells at all."""


class Placement:
    """All slots of one context. Told of every operation, in order."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        pools = 1 if rules.unified else rules.slots
        self._pools = [_Pool(rules.cells) for _ in range(pools if rules.attention else 0)]
        self._cells = [array("i") for _ in range(rules.slots)]
        """Of each slot, in the order of its tokens."""

    @property
    def highest(self) -> int:
        """The highest cell in use, plus one; of all pools."""
        return max((pool.highest for pool in self._pools), default=0)

    def decoded(self, runs: Iterable[Run]) -> int:
        """Rows were computed, in this order; the number of ubatches that they were split into."""
        ubatches = split(list(runs), self._rules)
        if self._pools:
            for ubatch in ubatches:
                self._place(ubatch)
        return len(ubatches)

    def trim(self, slot: int, length: int) -> None:
        """Only the first `length` tokens of `slot` are left."""
        cells = self._cells[slot]
        if length < len(cells):
            self._pool(slot).free(np.array(cells[length:], np.int32))
            del cells[length:]

    def fork(self, source: int, target: int, length: int) -> None:
        """The empty `target` shares the first `length` tokens of `source`."""
        if self._pools:
            cells = self._cells[target] = self._cells[source][:length]
            self._pool(source).share(np.array(cells, np.int32))

    def restore(self, slot: int, length: int) -> None:
        """`length` tokens were loaded into the empty `slot`."""
        if self._pools:
            self._place([(slot, length)])

    def _place(self, ubatch: Sequence[Run]) -> None:
        if self._rules.unified:
            ranges = self._pools[0].take([rows for _, rows in ubatch])
        else:
            # The search begins in each pool by itself.
            ranges = [self._pools[slot].take([rows])[0] for slot, rows in ubatch]
        for (slot, _), found in zip(ubatch, ranges, strict=True):
            for begin, end in found:
                self._cells[slot].extend(range(begin, end))

    def _pool(self, slot: int) -> "_Pool":
        return self._pools[0 if self._rules.unified else slot]


class _Pool:
    """Cells of one stream, each with how many slots share it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._owners = np.zeros(size, np.uint16)
        # The same as bytes, 0 or 1, since those can be searched at memory's speed.
        self._taken = bytearray(size)
        self._taken_view = np.frombuffer(self._taken, np.uint8)
        self._used = 0
        self._head = 0
        """Where the next search begins."""
        self.highest = 0
        """The highest cell that is taken, plus one."""

    def take(self, counts: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Cells for so many rows each: the next free ones. The caller knows that there are enough."""
        total = sum(counts)
        if self._head > self._used + 2 * total:
            self._head = 0
        found = [self._take(count) for count in counts]
        self._used += total
        return found

    def _take(self, count: int) -> list[tuple[int, int]]:
        taken, ranges = self._taken, []
        while count:
            begin = taken.find(0, self._head)
            if begin < 0:
                self._head = 0
                continue
            end = taken.find(1, begin, begin + count)
            end = min(begin + count, self._size) if end < 0 else end
            taken[begin:end] = b"\x01" * (end - begin)
            self._owners[begin:end] = 1
            ranges.append((begin, end))
            count -= end - begin
            self._head = end
            self.highest = max(self.highest, end)
        return ranges

    def share(self, cells: Cells) -> None:
        """One more slot has these."""
        self._owners[cells] += 1

    def free(self, cells: Cells) -> None:
        """One slot has these no more."""
        self._owners[cells] -= 1
        freed = cells[self._owners[cells] == 0]
        if not len(freed):
            return
        self._taken_view[freed] = 0
        self._used -= len(freed)
        self._head = min(self._head, int(freed.min()))
        self.highest = self._taken.rfind(1, 0, self.highest) + 1


def split(runs: list[Run], rules: Rules) -> list[list[Run]]:
    """The ubatches of a batch with these rows, each as the rows of its sequences in order."""
    if not rules.recurrent and rules.unified:
        return _split_simple(runs, rules.n_ubatch)
    left = dict(runs)
    ubatches: list[list[Run]] = []
    while left:
        # Only a recurrent model's cells of one pool may come in any order of sequences.
        chosen = _choose(left, rules.n_ubatch, sequential=not rules.unified or not rules.attention)
        rows = max(1, min(*(left[slot] for slot in chosen), rules.n_ubatch // len(chosen)))
        taken = _keep_tails([(slot, rows) for slot in chosen], left, rules)
        for slot, count in taken:
            left[slot] -= count
            if not left[slot]:
                del left[slot]
        ubatches.append(taken)
    return ubatches


def _split_simple(runs: list[Run], n_ubatch: int) -> list[list[Run]]:
    ubatches: list[list[Run]] = []
    room = 0
    for slot, rows in runs:
        left = rows
        while left:
            if not room:
                ubatches.append([])
                room = n_ubatch
            taken = min(left, room)
            ubatches[-1].append((slot, taken))
            left -= taken
            room -= taken
    return ubatches


def _choose(left: dict[int, int], n_ubatch: int, *, sequential: bool) -> list[int]:
    """The sequences of the next ubatch: all, or those whose ids follow each other from the first one's."""
    chosen: list[int] = []
    for slot in left:
        if not sequential or not chosen or slot == chosen[-1] + 1:
            chosen.append(slot)
            if len(chosen) > n_ubatch:
                break
    return chosen


def _keep_tails(taken: list[Run], left: dict[int, int], rules: Rules) -> list[Run]:
    """Up to the first sequence whose last rows would be torn apart; where none comes before it, it alone, resized."""
    tail = rules.kept_tail
    if not tail:
        return taken
    for at, (slot, rows) in enumerate(taken):
        rest = left[slot] - rows
        if rest and rest < tail:
            if at:
                return taken[:at]
            return [(slot, left[slot] if left[slot] <= rules.n_ubatch else left[slot] - tail)]
    return taken
