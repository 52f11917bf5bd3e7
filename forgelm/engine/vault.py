"""States off the device, in RAM by key and on disk by name. Does what plans say; what to keep is others' business."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from forgelm.engine.disk import DiskTier, Evicted, Loaded, Written
from forgelm.engine.drafter import ModelDrafter, State
from forgelm.engine.plan import Archive, Fetch, Moves
from forgelm.engine.prefix import Checkpoint as TreeCheckpoint
from forgelm.engine.prefix import Holder, Kept
from forgelm.llama.context import Checkpoint, Context, NoRoom


@dataclass(slots=True)
class _Report:
    """What one step's moves came to, so far."""

    saved: list[tuple[int, int]] = field(default_factory=list)
    archived: list[tuple[int, str]] = field(default_factory=list)
    fetched: list[tuple[int, int]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    lost: bool = False
    disk_failed: bool = False


class Vault:
    """Checkpoints by key, and the disk behind them."""

    def __init__(self, context: Context, disk: DiskTier | None = None, drafter: ModelDrafter | None = None) -> None:
        """What `drafter` knows of a slot is kept with it, but not on disk: it can be had again."""
        self._context = context
        self._disk = disk
        self._drafter = drafter
        self._states: dict[int, Checkpoint] = {}
        self._drafts: dict[int, State] = {}
        self._reading: dict[str, Fetch] = {}
        self._report = _Report()

    def save(self, slot: int, key: int, *, whole: bool) -> None:
        began = time.perf_counter()
        state = self._context.save(slot, whole=whole)
        self._states[key] = state
        beside = self._drafter.save(slot) if whole and self._drafter is not None else None
        if beside is not None:
            self._drafts[key] = beside
        size = len(state.data) + (0 if beside is None else len(beside))
        self._report.saved.append((key, size))
        self._moved(size, began)

    @property
    def lost(self) -> bool:
        """Whether a restore of this step found no room: see `Moves.lost`."""
        return self._report.lost

    def restore(self, slot: int, key: int) -> None:
        began = time.perf_counter()
        state = self._states[key]
        try:
            self._context.restore(slot, state)
        except NoRoom:
            self._report.lost = True
            return
        # Of a recurrent part alone the attention was forked, and a drafter forked with it.
        if self._drafter is not None and not state.partial:
            self._drafter.restore(slot, self._drafts.get(key), state.length)
        self._moved(len(state.data), began)

    def _moved(self, size: int, began: float) -> None:
        self._report.seconds += time.perf_counter() - began
        self._report.bytes += size

    def drop(self, key: int) -> None:
        # Absent only where its save was left undone.
        self._states.pop(key, None)
        self._drafts.pop(key, None)

    # --- disk ---

    def archived(self) -> list[Kept]:
        """What a former process left, as the tree's entries."""
        entries = self._disk.index() if self._disk is not None else []
        # The files' times are of the calendar, the engine's of a clock that started with the machine.
        shift = time.monotonic() - time.time()
        return [
            TreeCheckpoint(entry.tokens, 0, entry.name, entry.size, entry.last_used + shift)
            if entry.partial
            else Holder(
                entry.tokens,
                len(entry.tokens),
                name=entry.name,
                bytes=entry.size,
                last_used=entry.last_used + shift,
            )
            for entry in entries
        ]

    def archive(self, operation: Archive) -> None:
        """Hand a state to the disk; refused where that has too much to do, or the state was never saved."""
        state, name = self._states.get(operation.key), None
        if state is not None and self._disk is not None:
            name = self._disk.write(operation.tokens, state.partial, state.data)
        self._report.archived.append((operation.key, name or ""))

    def fetch(self, operation: Fetch) -> None:
        """Begin to read a file."""
        if self._disk is None:
            self._report.fetched.append((operation.key, -1))
            return
        self._reading[operation.name] = operation
        self._disk.read(operation.name)

    def wait(self, seconds: float) -> None:
        """Sleep until the disk has something to say, at most for so long."""
        if self._disk is not None:
            self._disk.wait(seconds)

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        if self._disk is not None:
            self._disk.close(seconds)

    def _poll(self) -> None:
        for end in self._disk.poll() if self._disk is not None else ():
            match end:
                case Written(name, ok) if not ok:
                    self._report.forgotten.append(name)
                    self._report.disk_failed = True
                case Evicted(name):
                    self._report.forgotten.append(name)
                case Loaded():
                    self._report.fetched += self._loaded(end)

    def _loaded(self, end: Loaded) -> Iterator[tuple[int, int]]:
        asked = self._reading.pop(end.name)
        if end.data is None:
            yield asked.key, -1
        else:
            self._states[asked.key] = Checkpoint(asked.length, asked.partial, end.data)
            yield asked.key, len(end.data)

    def take_report(self) -> Moves:
        """What the moves since the last call came to, and what the disk has finished."""
        self._poll()
        report, self._report = self._report, _Report()
        return Moves(
            tuple(report.saved),
            report.seconds,
            report.bytes,
            tuple(report.archived),
            tuple(report.fetched),
            tuple(report.forgotten),
            report.disk_failed,
            report.lost,
        )
