"""The ledger of cells against sets of cell numbers."""

import random

import pytest

from forgelm.engine.cells import CellLedger

SLOTS = 6


class Naive:
    """Every cell is a number, and a slot is a list of them."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = [[] for _ in range(SLOTS)]
        self.running: set[int] = set()
        self._next = 0

    def extend(self, slot: int, count: int) -> None:
        self.slots[slot] += range(self._next, self._next + count)
        self._next += count

    def held(self, slots: set[int]) -> set[int]:
        return {cell for slot in slots for cell in self.slots[slot]}


def compare(ledger: CellLedger, naive: Naive) -> None:
    everybody = set(range(SLOTS))
    active = naive.held(naive.running)
    assert ledger.used == len(naive.held(everybody))
    assert ledger.active == len(active)
    assert ledger.cached == len(naive.held(everybody) - active)
    for slot in range(SLOTS):
        mine = naive.slots[slot]
        assert ledger.length(slot) == len(mine)
        assert ledger.exclusive(slot) == len(set(mine) - naive.held(everybody - {slot}))
        for length in (0, 1, len(mine) // 2, len(mine)):
            assert ledger.active_prefix(slot, length) == len(active.intersection(mine[:length]))


@pytest.mark.parametrize("seed", range(40))
def test_the_ledger_counts_what_sets_hold(seed: int) -> None:
    rng, ledger, naive = random.Random(seed), CellLedger(10_000, SLOTS), Naive()
    for _ in range(200):
        slot, other = rng.sample(range(SLOTS), 2)
        action = rng.random()
        if action < 0.4:
            count = rng.randint(1, 20)
            ledger.extend(slot, count)
            naive.extend(slot, count)
        elif action < 0.6 and naive.slots[slot] and not naive.slots[other]:
            length = rng.randint(1, len(naive.slots[slot]))
            ledger.fork(slot, other, length)
            naive.slots[other] = naive.slots[slot][:length]
        elif action < 0.8:
            length = rng.choice((0, 0, rng.randint(0, len(naive.slots[slot]))))
            ledger.trim(slot, length)
            del naive.slots[slot][length:]
        elif slot in naive.running:
            ledger.stop(slot)
            naive.running.remove(slot)
        else:
            ledger.start(slot)
            naive.running.add(slot)
        compare(ledger, naive)
