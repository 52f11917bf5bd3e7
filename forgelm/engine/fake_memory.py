"""The fake backend's memory: which tokens lie in which slot, in shared cells, and what was copied to RAM and disk.

As strict as the real one: an operation that would corrupt a sequence raises.
"""

from collections import Counter
from itertools import count, islice

import numpy as np

from forgelm.engine.plan import Fetch, Fork, Settle, Tokens, Trim
from forgelm.engine.prefix import Checkpoint, Holder, Kept

CELL_BYTES, STATE_BYTES = 16, 512
"""Sizes of made-up states: a recurrent one weighs as much as 32 tokens."""


class FakeMemory:
    """Slots and copies of them; computes nothing."""

    def __init__(self, slots: int, room: int, *, recurrent: bool) -> None:
        """`room` is the number of cells. `recurrent` makes it a hybrid's."""
        self._room, self._recurrent = room, recurrent
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        """Token ids held by each slot."""
        self._cells: list[list[int]] = [[] for _ in self.tokens]
        """The cell that each of them lies in: forks share cells."""
        self._users: Counter[int] = Counter()
        """Slots that hold a cell."""
        self._new_cell = count()
        self._rolled_back: set[int] = set()
        """Slots of a hybrid whose state lies where a rollback left it."""
        self._stateless: set[int] = set()
        """Slots of a hybrid forked from the middle of another: a state must be loaded before they are computed."""
        self.saved: dict[int, tuple[bool, list[int]]] = {}
        """Copies by key: whether of the recurrent part alone, and the tokens that led to it."""
        self.files: dict[str, tuple[bool, list[int]]] = {}
        """The same on disk, by name."""
        self._new_file = count()

    @property
    def cells_used(self) -> int:
        return len(self._users)

    def begin(self, slot: int, start: int, tokens: list[int]) -> list[int]:
        """Compute `tokens` in a slot from position `start`; all that it holds then, the list itself."""
        held = self.tokens[slot]
        require(len(held) == start, f"slot {slot} holds {len(held)}, span starts at {start}")
        require(slot not in self._stateless, f"compute in {slot}, which has no state")
        self._rolled_back.discard(slot)
        self.append(slot, tokens)
        return held

    def drop(self, key: int) -> None:
        """Forget a copy."""
        self.saved.pop(key, None)

    def arrange(self, operation: Trim | Fork | Settle) -> None:
        """Carry out what changes slots alone."""
        match operation:
            case Trim(slot, length):
                self._trim(slot, length)
            case Fork(source, target, length):
                self._fork(source, target, length)
            case Settle(slot):
                self._rolled_back.discard(slot)

    def _trim(self, slot: int, length: int) -> None:
        held = len(self.tokens[slot])
        require(length <= held, f"trim {slot} to {length}")
        require(length in (0, held) or not self._recurrent, f"trim the hybrid's slot {slot} of {held} to {length}")
        self._cut(slot, length)
        if not length:
            self._stateless.discard(slot)
            self._rolled_back.discard(slot)

    def _cut(self, slot: int, length: int) -> None:
        for cell in self._cells[slot][length:]:
            self._users[cell] -= 1
            if not self._users[cell]:
                del self._users[cell]
        del self.tokens[slot][length:]
        del self._cells[slot][length:]

    def _fork(self, source: int, target: int, length: int) -> None:
        require(not self.tokens[target], f"fork into used slot {target}")
        require(0 < length <= len(self.tokens[source]), f"fork {length} of {source}")
        require(source not in self._stateless, f"fork of {source}, which has no state")
        whole = length == len(self.tokens[source])
        require(not (whole and source in self._rolled_back), f"fork of {source}, which was rolled back")
        if self._recurrent and length < len(self.tokens[source]):
            self._stateless.add(target)
        self.tokens[target] = self.tokens[source][:length]
        self._cells[target] = self._cells[source][:length]
        self._users.update(self._cells[target])

    def save(self, slot: int, key: int, *, whole: bool) -> int:
        """Copy a slot's state; its bytes."""
        require(bool(self.tokens[slot]) and slot not in self._stateless, f"save {slot}")
        require(slot not in self._rolled_back, f"save {slot}, which was rolled back")
        require(key not in self.saved, f"save under the used key {key}")
        self.saved[key] = (self._recurrent and not whole, list(self.tokens[slot]))
        return self.size(key)

    def restore(self, slot: int, key: int) -> None:
        """Load a copy into a slot."""
        partial, tokens = self.saved[key]
        if partial:
            require(slot in self._stateless, f"load a state into {slot}, which doesn't want one")
            require(self.tokens[slot] == tokens, f"load a state of another text into {slot}")
            self._stateless.remove(slot)
        else:
            require(not self.tokens[slot], f"load into used slot {slot}")
            require(self.cells_used + len(tokens) <= self._room, f"load {len(tokens)} without room")
            self.append(slot, tokens)

    def archived(self) -> list[Kept]:
        """The files, for a memory that starts anew."""
        return [
            Checkpoint(np.array(tokens, np.int32), name=name, bytes=STATE_BYTES)
            if partial
            else Holder(np.array(tokens, np.int32), len(tokens), name=name, bytes=CELL_BYTES * len(tokens))
            for name, (partial, tokens) in self.files.items()
        ]

    def archive(self, key: int, tokens: Tokens) -> str:
        """Write a copy to disk; the file's name, "" where there is no such copy."""
        state = self.saved.get(key)
        if state is None:
            return ""
        require(state[1] == tokens.tolist(), f"archive {key} as another text")
        name = f"file {next(self._new_file)}"
        self.files[name] = state
        return name

    def read(self, fetch: Fetch) -> tuple[int, int]:
        """Make a file a copy; its key and bytes, −1 where it is gone."""
        state = self.files.get(fetch.name)
        if state is None:
            return fetch.key, -1
        require(state[0] == fetch.partial and len(state[1]) == fetch.length, f"fetch of {fetch.name}")
        self.saved[fetch.key] = state
        return fetch.key, self.size(fetch.key)

    def size(self, key: int) -> int:
        """Bytes of a copy."""
        partial, tokens = self.saved[key]
        return STATE_BYTES if partial else CELL_BYTES * len(tokens) + STATE_BYTES * self._recurrent

    def append(self, slot: int, tokens: list[int]) -> None:
        """More tokens in a slot, in new cells."""
        cells = list(islice(self._new_cell, len(tokens)))
        self.tokens[slot] += tokens
        self._cells[slot] += cells
        self._users.update(cells)

    def roll_back(self, slot: int, length: int) -> None:
        """Take back what was computed last."""
        self._cut(slot, length)
        if self._recurrent:
            self._rolled_back.add(slot)


def require(condition: bool, what: str) -> None:
    """Raise unless `condition` holds; `what` is what a plan asked."""
    if not condition:
        raise AssertionError(f"a plan broke memory: {what}")
