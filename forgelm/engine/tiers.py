"""What lies in RAM and on disk, by bytes and by worth. Decides what goes; the backend moves it.

Worth is the time that computing again would take, divided by how long ago it was last used and by its bytes: the
greedy-dual idea of web caches (GDSF), with recompute time as the cost.
"""

from collections.abc import Callable, Iterator
from itertools import count

from forgelm.engine.plan import Archive, Drop, Fetch, Moves, Operation, Save, Tokens
from forgelm.engine.prefix import NO_SLOT, Checkpoint, Holder, Kept, PrefixTree
from forgelm.engine.routes import Costs

PATIENCE = 30.0
"""Seconds added to every age: what was used a moment ago isn't worth infinitely more than what was used before."""
MIN_ARCHIVED = 64
"""Tokens below which a prefix isn't worth a file."""
ARCHIVE_AFTER = 3.0
"""Seconds that a finished sequence is left alone before it is written to disk: its next turn may be near."""

DISK_RESTS = 5.0
"""Seconds without a write once the disk has refused one, or failed."""


class Tiers:
    """Keys, bytes and file names. Shares the tree with `Memory`, which alone touches slots."""

    def __init__(
        self, tree: PrefixTree, costs: Costs, push: Callable[[Operation], None], *, limit: int, disk: bool
    ) -> None:
        """`limit` is the bytes of RAM, `push` takes the operations in order."""
        self._tree = tree
        self._costs = costs
        self._push = push
        self._limit = limit
        self._disk = disk
        self._keys = count(1)
        self._in_ram: dict[int, Kept] = {}
        self._on_disk: dict[str, Kept] = {}
        self._saving: dict[int, Kept] = {}
        self._archiving: dict[int, Kept] = {}
        self._fetching: dict[int, Kept] = {}
        self._disk_rests = 0.0
        """Until when the disk, which refused a state, isn't given another."""
        self.bytes = 0
        """In RAM."""
        self.pinned: tuple[Kept | None, ...] = ()
        """Needed by an operation that is being put together: nothing may push them out meanwhile."""

    @property
    def busy(self) -> bool:
        """Whether the disk owes an answer."""
        return bool(self._fetching)

    def fetching(self, parts: list[Kept]) -> bool:
        """Whether any of these is on its way from disk."""
        return any(kept in self._fetching.values() for kept in parts)

    def known(self, kept: Kept) -> None:
        """Take in what a former process left on disk."""
        self._on_disk[kept.name] = kept

    # --- RAM ---

    def save(self, kept: Kept, slot: int, size: int, now: float) -> bool:
        """Copy a slot's state to RAM as `kept`'s, if there is room among what is worth less."""
        if not self._make_room(size, self._worth(kept, now) / max(size, 1), now):
            return False
        kept.key, kept.bytes = next(self._keys), size
        self._put(kept)
        self._saving[kept.key] = kept
        self._push(Save(slot, kept.key, whole=isinstance(kept, Holder)))
        return True

    def worth_copying(self, size: int, tokens: int) -> bool:
        """Whether saving and loading `size` bytes takes less time than computing `tokens` again."""
        return 2 * self._costs.copy(size) < self._costs.compute(tokens)

    def drop(self, kept: Kept) -> None:
        """Forget the copy in RAM."""
        if kept.key:
            self._push(Drop(kept.key))
            self._take(kept)

    def drop_all(self) -> None:
        """Forget everything in RAM."""
        while self._in_ram:
            kept = next(iter(self._in_ram.values()))
            self.drop(kept)
            self.forget_if_gone(kept)

    def cancel_saves(self) -> None:
        """Forget copies that were asked for and not made."""
        saving, self._saving = self._saving, {}
        for key, kept in saving.items():
            if kept.key == key:
                self._take(kept)
                self.forget_if_gone(kept)

    def holders_in_ram(self) -> list[Holder]:
        """Whole sequences that have a copy in RAM."""
        return [kept for kept in self._in_ram.values() if isinstance(kept, Holder)]

    def fit(self, now: float) -> None:
        """Drop the least worthy until the limit holds."""
        self._make_room(0, float("inf"), now)

    def _put(self, kept: Kept) -> None:
        self._in_ram[kept.key] = kept
        self.bytes += kept.bytes

    def _take(self, kept: Kept) -> None:
        del self._in_ram[kept.key]
        self.bytes -= kept.bytes
        kept.key = 0

    def _make_room(self, size: int, density: float, now: float) -> bool:
        """Whether `size` bytes fit once everything of less worth per byte has gone, which it has then."""
        if size > self._limit:
            return False
        while self.bytes + size > self._limit:
            others = (kept for kept in self._in_ram.values() if kept not in self.pinned)
            weakest = min(others, key=lambda kept: self._worth(kept, now) / kept.bytes, default=None)
            if weakest is None or self._worth(weakest, now) / weakest.bytes >= density:
                return False
            self.archive(weakest, now)
            self.drop(weakest)
            self.forget_if_gone(weakest)
        return True

    # --- disk ---

    def archive(self, kept: Kept, now: float) -> None:
        """Write the copy in RAM to disk as well, unless most of it is there by way of others."""
        if self.worth_archiving(kept, now) and kept.key:
            self._archiving[kept.key] = kept
            self._push(Archive(kept.key, _tokens(kept)))

    def worth_archiving(self, kept: Kept, now: float) -> bool:
        """Whether the disk takes more, and would know enough more with it."""
        if not self._disk or now < self._disk_rests or kept.name or kept in self._archiving.values():
            return False
        if isinstance(kept, Checkpoint):
            return True
        return self.not_on_disk(kept) >= MIN_ARCHIVED

    def not_on_disk(self, kept: Holder) -> int:
        """Tokens that the disk has from nobody. Two chats with a common beginning both lack it until one is written."""
        return self._beyond(kept, lambda other: bool(other.name) or other in self._archiving.values())

    def fetch(self, parts: list[Kept]) -> None:
        """Begin to read what is on disk alone."""
        for kept in parts:
            if kept not in self._fetching.values():
                key = next(self._keys)
                self._fetching[key] = kept
                self._push(Fetch(kept.name, key, len(_tokens(kept)), isinstance(kept, Checkpoint)))

    def take_in(self, moves: Moves, now: float) -> None:
        """What the backend's moves came to."""
        for key, size in moves.saved:
            self._saving.pop(key, None)
            kept = self._in_ram.get(key)
            if kept is not None:
                self.bytes += size - kept.bytes
                kept.bytes = size
        # What is left here was never done: see `Moves.lost`.
        self.cancel_saves()
        if moves.disk_failed or not all(name for _, name in moves.archived):
            self._disk_rests = now + DISK_RESTS
        for key, name in moves.archived:
            self._archived(self._archiving.pop(key, None), name)
        for key, size in moves.fetched:
            self._fetched(self._fetching.pop(key, None), key, size, now)
        if moves.fetched:
            self.fit(now)
        for name in moves.forgotten:
            kept = self._on_disk.pop(name, None)
            if kept is not None:
                kept.name = ""
                self.forget_if_gone(kept)

    def _archived(self, kept: Kept | None, name: str) -> None:
        if kept is None:
            return
        if name:
            kept.name = name
            self._on_disk[name] = kept
        self.forget_if_gone(kept)

    def _fetched(self, kept: Kept | None, key: int, size: int, now: float) -> None:
        if kept is None:
            if size >= 0:
                self._push(Drop(key))
            return
        if size < 0:
            self._on_disk.pop(kept.name, None)
            kept.name = ""
            self.forget_if_gone(kept)
            return
        kept.key, kept.bytes, kept.last_used = key, size, now
        self._put(kept)

    # --- both ---

    def forget_if_gone(self, kept: Kept) -> None:
        """Take it off the tree once it is nowhere any more."""
        if kept.key or kept.name or kept in self._archiving.values():
            return
        if isinstance(kept, Checkpoint):
            self._tree.detach(kept)
        elif kept.slot == NO_SLOT:
            self.forget(kept)

    def forget(self, holder: Holder) -> None:
        """Take `holder` off the tree, and its copies and whatever depends on it away."""
        for checkpoint in self._tree.remove(holder):
            self._discard(checkpoint)
        self._discard(holder)

    def _discard(self, kept: Kept) -> None:
        # A file stays until the disk's own bound takes it: a later process may have use for it.
        self._on_disk.pop(kept.name, None)
        kept.name = ""
        for waiting in (self._archiving, self._fetching):
            for key in [key for key, other in waiting.items() if other is kept]:
                del waiting[key]
        self.drop(kept)

    def worth(self, holder: Holder, now: float) -> float:
        """What losing the copy on the device would cost, by recency."""
        seconds = self._costs.compute(self.unshared(holder))
        if holder.key or holder.name:
            seconds = min(seconds, self._costs.copy(holder.bytes))
        return seconds / (now - holder.last_used + PATIENCE)

    def _worth(self, kept: Kept, now: float) -> float:
        return self._costs.compute(self._tokens_saved(kept)) / (now - kept.last_used + PATIENCE)

    def _tokens_saved(self, kept: Kept) -> int:
        """Tokens that would have to be computed without it."""
        if isinstance(kept, Holder):
            return self.unshared(kept)
        return kept.depth - next(self._checkpoints_above(kept), 0)

    def _checkpoints_above(self, checkpoint: Checkpoint) -> Iterator[int]:
        """Depths of the checkpoints on the way to this one, deepest first."""
        path = [node for node, _ in self._tree.match(checkpoint.tokens)]
        return (node.end for node in reversed(path[:-1]) if node.checkpoint is not None)

    def unshared(self, holder: Holder) -> int:
        """Tokens that nobody else has in memory."""
        return self._beyond(holder, lambda other: True)

    def _beyond(self, holder: Holder, counts: Callable[[Holder], bool]) -> int:
        """Tokens of `holder` deeper than what others, as far as they count, have of the same text."""
        for node, _ in reversed(self._tree.match(holder.tokens)):
            others = (other for other in node.holders if other is not holder and counts(other))
            shared = max((min(other.computed, node.end) for other in others), default=0)
            if shared > node.start:
                return max(0, holder.computed - shared)
        return holder.computed


def _tokens(kept: Kept) -> Tokens:
    return kept.tokens if isinstance(kept, Checkpoint) else kept.tokens[: kept.computed]
