"""States off the device, in RAM by key and on disk by name. Does what plans say; what to keep is others' business."""

import time
from dataclasses import dataclass, field

from forgelm.engine.plan import Moves
from forgelm.llama.context import Checkpoint, Context, NoRoom


@dataclass(slots=True)
class _Report:
    """What one step's moves came to, so far."""

    saved: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0
    lost: bool = False


class Vault:
    """Checkpoints by key, and the disk behind them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._states: dict[int, Checkpoint] = {}
        self._report = _Report()

    def save(self, slot: int, key: int, *, whole: bool) -> None:
        began = time.perf_counter()
        state = self._context.save(slot, whole=whole)
        self._states[key] = state
        self._report.saved.append((key, len(state.data)))
        self._moved(state, began)

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
        self._moved(state, began)

    def _moved(self, state: Checkpoint, began: float) -> None:
        self._report.seconds += time.perf_counter() - began
        self._report.bytes += len(state.data)

    def drop(self, key: int) -> None:
        # Absent only where its save was left undone.
        self._states.pop(key, None)

    def take_report(self) -> Moves:
        """What the moves since the last call came to."""
        report, self._report = self._report, _Report()
        return Moves(tuple(report.saved), report.seconds, report.bytes, lost=report.lost)
