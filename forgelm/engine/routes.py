"""Where a new sequence gets its prefix from: the way that leaves least to do, computing and copying taken together.

Attention memory can be shared or loaded up to any depth. A recurrent state exists at two kinds of places only: where a
holder stopped, and at checkpoints; attention up to a checkpoint then comes from anybody who passes through it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from forgelm.engine.plan import Tokens
from forgelm.engine.prefix import NO_SLOT, Checkpoint, Holder, Node, PrefixTree
from forgelm.ipc.messages import Tier

MIN_SHARED = 8
"""Tokens below which a prefix isn't worth the operations: BOS and a role are common to all."""
_FIRST_BYTE_SECONDS = 1 / 2e9
"""Of a copy to or from RAM, until one was seen."""
_DISK_BYTE_SECONDS = 1 / 0.4e9
_ALPHA = 0.2


@dataclass(frozen=True, slots=True)
class Shape:
    """What the loaded model's memory is made of."""

    cells: int
    recurrent: bool = False
    cell_bytes: float = 0.0
    """One token's keys and values."""
    state_bytes: int = 0
    """One recurrent state."""

    def bytes(self, tokens: int) -> int:
        """A whole sequence of `tokens`, saved."""
        return int(tokens * self.cell_bytes) + self.state_bytes


class Costs:
    """Seconds of what could be done instead of each other."""

    def __init__(self, row_seconds: float) -> None:
        self.row_seconds = row_seconds
        """One prefill row; kept up to date by the owner."""
        self._byte_seconds = _FIRST_BYTE_SECONDS

    def observe(self, moved: int, seconds: float) -> None:
        """Learn from copies."""
        if moved and seconds > 0.0:
            self._byte_seconds += _ALPHA * (seconds / moved - self._byte_seconds)

    def compute(self, tokens: int) -> float:
        return tokens * self.row_seconds

    def copy(self, size: int) -> float:
        return size * self._byte_seconds

    def load(self, kept: Holder | Checkpoint) -> float:
        """Getting it back to the device."""
        if isinstance(kept, Holder) and kept.slot != NO_SLOT:
            return 0.0
        return self.copy(kept.bytes) + (0.0 if kept.key else kept.bytes * _DISK_BYTE_SECONDS)


@dataclass(slots=True)
class Route:
    """How to start a sequence. The default is from nothing."""

    depth: int = 0
    """Tokens that needn't be computed."""
    holder: Holder | None = None
    checkpoint: Checkpoint | None = None
    """A state to load on top of the holder's attention; None where the holder's own will do."""
    leader: Holder | None = None
    """A running sequence that is about to compute more of this prefix than is there now."""
    shared: int = 0
    """How far the leader's tokens agree."""
    agreed: int = 0
    """How far anybody's tokens agree, computed or not."""

    @property
    def to_fetch(self) -> list[Holder | Checkpoint]:
        """Parts of the way that are on disk alone."""
        parts: list[Holder | Checkpoint] = []
        if self.holder is not None and self.holder.slot == NO_SLOT and not self.holder.key:
            parts.append(self.holder)
        if self.checkpoint is not None and not self.checkpoint.key:
            parts.append(self.checkpoint)
        return parts


    def tier(self, *, from_disk: bool) -> Tier:
        """The slowest place that a part of it comes from; "" for a start from nothing.

        `from_disk`: something of it was just read from there, and lies in RAM now.
        """
        if self.holder is None or not self.depth:
            return ""
        saved = self.checkpoint is not None or self.holder.slot == NO_SLOT
        if not saved:
            return "device"
        return "disk" if from_disk else "host"


def find_route(
    tree: PrefixTree, tokens: Tokens, *, shape: Shape, costs: Costs, room: int, disk: bool, wait: bool
) -> Route:
    """The best way to memory of `tokens`, without the last one: its logits must be computed.

    `room`: cells that loading a saved sequence may take. `disk` allows what has to be read from there first, `wait`
    naming a leader.
    """
    path = tree.match(tokens[:-1])
    best, most = Route(), 0.0
    for depth, holder, checkpoint in _options(path, recurrent=shape.recurrent):
        option = Route(depth, holder, checkpoint)
        if (holder.slot == NO_SLOT and holder.computed > room) or (option.to_fetch and not disk):
            continue
        gain = costs.compute(depth) - costs.load(holder) - (costs.load(checkpoint) if checkpoint else 0.0)
        if gain > most or (gain == most and _may_adopt(option) and not _may_adopt(best)):
            best, most = option, gain
    best.agreed = path[-1][1] if path else 0
    if wait:
        best.leader, best.shared = _leader(path, best.depth)
    return best


def _options(path: list[tuple[Node, int]], *, recurrent: bool) -> Iterator[tuple[int, Holder, Checkpoint | None]]:
    """(depth, holder, checkpoint) of every way to a prefix of the path, deepest nodes first."""
    for node, agreed in reversed(path):
        if agreed < MIN_SHARED:
            return
        holders = [holder for holder in node.holders if holder.reachable]
        for holder in holders:
            depth = min(agreed, holder.computed)
            if depth > node.start and (depth == holder.computed or not recurrent):
                yield depth, holder, None
        if node.checkpoint is not None and node.checkpoint.reachable and agreed == node.end:
            yield from ((agreed, holder, node.checkpoint) for holder in holders if holder.computed >= agreed)


def _may_adopt(route: Route) -> bool:
    """Whether the sequence could go on in the holder's own slot."""
    holder = route.holder
    return holder is not None and not holder.running and holder.slot != NO_SLOT and holder.computed == route.depth


def _leader(path: Iterable[tuple[Node, int]], depth: int) -> tuple[Holder | None, int]:
    """Whom to wait for, and up to where: others' tokens may agree further than the leader's."""
    for node, agreed in reversed(list(path)):
        for holder in node.holders:
            if holder.running and holder.computed < agreed and agreed - depth >= MIN_SHARED:
                return holder, agreed
    return None, 0
