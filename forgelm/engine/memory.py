"""The engine's memory: who owns which slot, what is kept of finished sequences, and what goes when room is needed.

Takes decisions and writes them down as operations, in the order in which they must be carried out; touches no model.
The scheduler opens a sequence here before its first rows, tells what was computed, and closes it. All of it is one
pool: cells that finished requests keep are free for anybody who needs them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forgelm.config import Cache
from forgelm.engine.cells import CellLedger
from forgelm.engine.checkpoints import add_mark, find_marks, interval
from forgelm.engine.plan import Fork, Moves, Operation, Restore, Save, Settle, Tokens, Trim
from forgelm.engine.prefix import NO_SLOT, Checkpoint, Holder, PrefixTree
from forgelm.engine.routes import MIN_SHARED, Costs, Route, Shape, find_route
from forgelm.engine.slots import Slots
from forgelm.engine.tiers import ARCHIVE_AFTER, Tiers


@dataclass(frozen=True, slots=True)
class Usage:
    """Cells and bytes, as they are now. `free + cached + active` is the pool."""

    active: int
    """Cells of running sequences."""
    cached: int
    """Cells of finished ones alone."""
    free: int
    host_bytes: int


class Memory:
    """The owner of all slots. One caller: the scheduler."""

    def __init__(
        self,
        shape: Shape,
        *,
        slots: int,
        cache: Cache,
        costs: Costs,
        host_bytes: int = 0,
        archived: Iterable[Holder | Checkpoint] = (),
        whole_slots: int | None = None,
    ) -> None:
        """`slots` counts running and kept sequences; `archived` is what the disk holds from a former process.

        Of the slots the first `whole_slots` give whole rows of logits, more than ever run at once; None: all do.
        """
        self.shape = shape
        self.ledger = CellLedger(shape.cells, slots)
        self._cache = cache
        self._costs = costs
        self._tree = PrefixTree()
        self._operations: list[Operation] = []
        self._tiers = Tiers(
            self._tree,
            costs,
            self._operations.append,
            limit=host_bytes,
            disk=cache.disk_tier and cache.prefix_cache,
        )
        self._slots = Slots(slots, whole_slots)
        self._kept: list[Holder] = []
        """Finished sequences on the device."""
        self._interval = cache.checkpoint_tokens or interval(shape)
        self._saves_states = shape.recurrent and cache.checkpoints and cache.prefix_cache
        self._load(archived)

    def _load(self, archived: Iterable[Holder | Checkpoint]) -> None:
        entries = sorted(archived, key=lambda kept: isinstance(kept, Checkpoint))
        for kept in entries:
            if isinstance(kept, Holder):
                self._tree.insert(kept)
            elif not self._tree.attach(kept):
                continue
            self._tiers.known(kept)

    # --- what the scheduler asks ---

    @property
    def usage(self) -> Usage:
        ledger = self.ledger
        return Usage(ledger.active, ledger.cached, ledger.cells - ledger.used, self._tiers.bytes)

    @property
    def room(self) -> int:
        """Cells that running sequences can still get: free ones and those of finished requests."""
        return self.ledger.cells - self.ledger.active

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    @property
    def waits_for_disk(self) -> bool:
        return self._tiers.busy

    def take_operations(self) -> tuple[Operation, ...]:
        """What has been decided since the last call, in order."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    def route(self, tokens: Tokens, *, disk: bool = True) -> Route:
        """The best start for a sequence of `tokens`."""
        if not self._cache.prefix_cache:
            return Route()
        return find_route(
            self._tree,
            tokens,
            shape=self.shape,
            costs=self._costs,
            room=self.room,
            disk=disk,
            wait=self._cache.share_in_flight and (not self.shape.recurrent or self._cache.checkpoints),
        )

    def fresh(self, route: Route, length: int) -> int:
        """Cells that a sequence of `length` tokens adds to those of the running ones."""
        if route.holder is None or route.holder.slot == NO_SLOT:
            return length
        return length - self.ledger.active_prefix(route.holder.slot, route.depth)

    def await_leader(self, route: Route) -> None:
        """The caller waits for `route.leader`: on hybrids that one shall leave a state where the texts part."""
        if route.leader is not None and self.shape.recurrent:
            add_mark(route.leader, route.shared)

    def fetching(self, route: Route) -> bool:
        """Whether a part of the route is on its way from disk."""
        return self._tiers.fetching(route.to_fetch)

    def fetch(self, route: Route) -> None:
        """Begin to read from disk what the route needs from there."""
        self._tiers.fetch(route.to_fetch)

    # --- a sequence's life ---

    def open(
        self, tokens: Tokens, boundaries: Sequence[int], route: Route, now: float, *, whole_rows: bool = True
    ) -> Holder:
        """Give a sequence of `tokens` a slot with the first `route.depth` of them in it.

        `whole_rows`: its tokens can't be drawn from the highest logits alone.
        """
        source = route.holder
        self._tiers.pinned = (source, route.checkpoint)
        if source is None:
            slot = self._take_slot(now, whole=whole_rows)
        elif source in self._kept and source.computed == route.depth:
            slot = self._adopt(source, now, whole=whole_rows)
        else:
            source.last_used = now
            slot = self._take_slot(now, source, whole=whole_rows)
            self._fill(slot, source, route, now)
        self.ledger.start(slot)
        holder = Holder(tokens.copy(), route.depth, slot, running=True)
        if self._saves_states:
            holder.marks = find_marks(boundaries, route, len(tokens), self._interval)
        if self._cache.prefix_cache:
            self._tree.insert(holder)
        if source is not None:
            self._tiers.forget_if_gone(source)
        self._tiers.pinned = ()
        self._tiers.fit(now)
        return holder

    def advance(self, holder: Holder, count: int, now: float, *, rolled_back: bool = False) -> None:
        """`count` more tokens of `holder` are computed; `rolled_back`: more were, and were taken back."""
        self.ledger.extend(holder.slot, count)
        holder.computed += count
        holder.rolled_back = rolled_back and self.shape.recurrent
        if holder.marks and holder.computed in holder.marks:
            self._save_state(holder, now)

    def close(self, holder: Holder, tokens: Tokens, now: float, *, keep: bool = True) -> None:
        """The sequence runs no more. `tokens` is all of it; `keep` says that its memory can be trusted."""
        self.ledger.stop(holder.slot)
        holder.running = False
        if not (keep and self._cache.prefix_cache and holder.computed >= MIN_SHARED):
            self._wipe(holder)
            self._tiers.forget(holder)
            return
        self._settle(holder)
        kept = Holder(tokens[: holder.computed].copy(), holder.computed, self._park(holder.slot), last_used=now)
        self._tree.insert(kept)
        holder.slot = NO_SLOT
        self._tiers.forget(holder)
        self._kept.append(kept)
        self._supersede(kept, now)

    def make_room(self, cells: int, now: float) -> bool:
        """Give up cells of finished requests until `cells` are free; False if there aren't enough."""
        while self.ledger.cells - self.ledger.used < cells:
            if not self._kept:
                return False
            self._evict(self._weakest(self._kept, now), now)
        return True

    def bound(self, cells: int, now: float) -> None:
        """Keep at most `cells` for finished requests: each one costs every decode a little."""
        while self.ledger.cached > cells and self._kept:
            self._evict(self._weakest(self._kept, now), now)

    def lose_saved(self) -> None:
        """A saved state couldn't be loaded. None is tried again: why isn't known, and trying could go on for ever."""
        self._tiers.drop_all()

    def lose_device(self) -> None:
        """Nothing on the device can be trusted any more; the caller closes what runs."""
        # What was to be saved or shared before the next decode is damaged by now.
        self._operations[:] = [each for each in self._operations if not isinstance(each, Save | Settle | Fork)]
        self._tiers.cancel_saves()
        self._operations += [Trim(slot) for slot in self._slots.free]
        for kept in list(self._kept):
            self._drop_slot(kept)

    def take_in(self, moves: Moves, row_seconds: float, now: float) -> None:
        """What a step's memory operations came to, and what computing a token takes by now."""
        self._costs.row_seconds = row_seconds
        self._costs.observe(moves.bytes, moves.seconds)
        self._tiers.take_in(moves, now)

    # --- disk, when there is time ---

    def archive_next(self, now: float, *, at_once: bool = False) -> bool:
        """Write one finished sequence, left alone for a while or `at_once`, to disk; False when there is none."""
        for kept in self._finished():
            if (at_once or now - kept.last_used >= ARCHIVE_AFTER) and self._tiers.worth_archiving(kept, now):
                copied = bool(kept.key)
                if not copied and not self._save(kept, self._tiers.not_on_disk(kept), now):
                    continue
                self._tiers.archive(kept, now)
                for node, _ in self._tree.match(kept.tokens):
                    if node.checkpoint is not None:
                        self._tiers.archive(node.checkpoint, now)
                if not copied:
                    self._tiers.drop(kept)
                return True
        return False

    def archives_later(self, now: float) -> bool:
        """Whether `archive_next` will have something to do once some time has passed."""
        return any(self._tiers.worth_archiving(kept, now) for kept in self._finished())

    def _finished(self) -> list[Holder]:
        """Finished sequences on the device, then those in RAM alone."""
        return [*self._kept, *(kept for kept in self._tiers.holders_in_ram() if kept.slot == NO_SLOT)]

    # --- pieces ---

    def _adopt(self, source: Holder, now: float, *, whole: bool) -> int:
        """Go on in a finished sequence's own slot, or in one of the right kind."""
        slot: int | None = source.slot
        if not self._slots.suits(source.slot, whole=whole):
            slot = self._take_slot(now, source, whole=True) if whole else self._slots.take_best(whole=False)
        self._kept.remove(source)
        old, source.slot = source.slot, NO_SLOT
        return old if slot in (None, old) else self._move(old, slot)

    def _park(self, slot: int) -> int:
        """Where a sequence that ends in `slot` is kept: not where the next one would rather run."""
        if self._slots.suits(slot, whole=True):
            return slot
        other = self._slots.take_best(whole=True)
        return slot if other is None else self._move(slot, other)

    def _move(self, source: int, target: int) -> int:
        """Let the empty `target` have all of `source`; nothing is copied."""
        length = self.ledger.length(source)
        self._operations.append(Fork(source, target, length))
        self.ledger.fork(source, target, length)
        self._release(source)
        return target

    def _fill(self, slot: int, source: Holder, route: Route, now: float) -> None:
        """Bring the first `route.depth` tokens of `source` into the empty `slot`."""
        push, depth = self._operations.append, route.depth
        if source.slot != NO_SLOT:
            if depth == source.computed:
                self._settle(source)
            push(Fork(source.slot, slot, depth))
            self.ledger.fork(source.slot, slot, depth)
        elif route.checkpoint is None:
            self._restore(slot, source, now)
            if depth < source.computed:
                push(Trim(slot, depth))
                self.ledger.trim(slot, depth)
        else:
            # A whole state can't be cut back on a hybrid: its attention part is shared from a slot of passage.
            passage = self._take_slot(now, source, whole=False)
            self._restore(passage, source, now)
            push(Fork(passage, slot, depth))
            self.ledger.fork(passage, slot, depth)
            self._release(passage)
        if route.checkpoint is not None:
            route.checkpoint.last_used = now
            push(Restore(slot, route.checkpoint.key))

    def _restore(self, slot: int, source: Holder, now: float) -> None:
        self.make_room(source.computed, now)
        self._operations.append(Restore(slot, source.key))
        self.ledger.extend(slot, source.computed)

    def _take_slot(self, now: float, spared: Holder | None = None, *, whole: bool) -> int:
        slot = self._slots.take(whole=whole)
        if slot is None:
            in_way = [kept for kept in self._kept if not whole or self._slots.has_whole_rows(kept.slot)]
            self._evict(self._weakest(in_way, now, spared), now)
            slot = self._slots.take(whole=whole)
        assert slot is not None
        return slot

    def _release(self, slot: int) -> None:
        """The only place where a slot is given back; it is wiped before anything else is done with it."""
        self._operations.append(Trim(slot))
        self.ledger.trim(slot)
        self._slots.give_back(slot)

    def _settle(self, holder: Holder) -> None:
        """Nobody can go on from a state that was rolled back, or save it, before this."""
        if holder.rolled_back:
            self._operations.append(Settle(holder.slot))
            holder.rolled_back = False

    def _wipe(self, holder: Holder) -> None:
        self._release(holder.slot)
        holder.slot = NO_SLOT

    def _weakest(self, holders: Iterable[Holder], now: float, spared: Holder | None = None) -> Holder:
        return min((kept for kept in holders if kept is not spared), key=lambda kept: self._tiers.worth(kept, now))

    def _evict(self, kept: Holder, now: float) -> None:
        """Take `kept` off the device, to RAM if that pays."""
        if self._cache.host_tier and not kept.key:
            self._save(kept, self._tiers.unshared(kept), now)
        self._drop_slot(kept)

    def _save(self, kept: Holder, tokens: int, now: float) -> bool:
        """Copy `kept` to RAM if that costs less than computing the `tokens` again that would be lost otherwise."""
        size = self.shape.bytes(kept.computed)
        return self._tiers.worth_copying(size, tokens) and self._tiers.save(kept, kept.slot, size, now)

    def _drop_slot(self, kept: Holder) -> None:
        self._kept.remove(kept)
        self._wipe(kept)
        self._tiers.forget_if_gone(kept)

    def _supersede(self, kept: Holder, now: float) -> None:
        """Let go of finished sequences that are a beginning of `kept`, or of `kept` if it is one of another's."""
        path = [node for node, _ in self._tree.match(kept.tokens)]
        if any(other in self._kept and other.computed > kept.computed for other in path[-1].holders):
            self._let_go(kept, now)
            return
        for other in [other for node in path for other in node.holders if len(other.tokens) <= node.end]:
            if other is not kept and not other.running:
                self._let_go(other, now)

    def _let_go(self, other: Holder, now: float) -> None:
        if self.shape.recurrent and other.slot != NO_SLOT and self._cache.checkpoints:
            self._save_state(other, now)
        if other.slot != NO_SLOT:
            self._kept.remove(other)
            self._wipe(other)
        self._tiers.forget(other)

    def _save_state(self, holder: Holder, now: float) -> None:
        """Leave the recurrent state of `holder`, as it is now, at its depth."""
        self._settle(holder)
        checkpoint = Checkpoint(holder.tokens[: holder.computed], last_used=now)
        if self._tree.attach(checkpoint) and not self._tiers.save(checkpoint, holder.slot, self.shape.state_bytes, now):
            self._tree.detach(checkpoint)
