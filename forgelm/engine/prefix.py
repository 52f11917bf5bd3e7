"""A radix tree over token ids: who holds the beginning of a text, and where a recurrent state was saved on the way.

Holders are sequences whose prefix is in some memory: running ones, finished ones kept on the device, in RAM or on disk.
Each lies on the path of its tokens; a node knows every holder that passes through it. Checkpoints of hybrid models hang
at the node that ends at their depth, and live as long as somebody holds the attention part up to there.

The idea of one radix tree for all requests is SGLang's (RadixAttention); branch points as places for recurrent states
are from its hybrid variant.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from forgelm.engine.plan import Tokens

NO_SLOT = -1
_ROOT = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A saved recurrent state: in RAM under `key` or on disk under `name`, or both."""

    tokens: Tokens
    """What it has seen, shape (depth,)."""
    key: int = 0
    name: str = ""
    bytes: int = 0
    last_used: float = 0.0

    @property
    def depth(self) -> int:
        return len(self.tokens)

    @property
    def reachable(self) -> bool:
        """False for one that is just on its way to disk."""
        return bool(self.key or self.name)


@dataclass(slots=True, eq=False)
class Holder:
    """Somebody who has the beginning of `tokens` in memory, in one place or several."""

    tokens: Tokens
    """Shape (n,), never changed. What a running sequence generates comes on top, once it has ended."""
    computed: int = 0
    """How many of them are in memory; the rest is promised. On hybrids the recurrent state is the one after these."""
    slot: int = NO_SLOT
    running: bool = False
    key: int = 0
    """In RAM under this key."""
    name: str = ""
    """On disk under this name."""
    bytes: int = 0
    """In RAM or on disk."""
    last_used: float = 0.0
    rolled_back: bool = False
    """Its recurrent state lies where a rollback left it."""
    marks: list[int] = field(default_factory=list)
    """Depths, ascending, at which its prefill pauses for a checkpoint."""

    @property
    def reachable(self) -> bool:
        """False for one that is just on its way to disk."""
        return self.slot != NO_SLOT or bool(self.key or self.name)

    def next_mark(self) -> int:
        """The first mark that isn't reached yet; 0 if there is none."""
        at = bisect_right(self.marks, self.computed)
        return self.marks[at] if at < len(self.marks) else 0


Kept = Holder | Checkpoint
"""What can lie in RAM or on disk."""


class Node:
    """An edge and the point at its end."""

    __slots__ = ("checkpoint", "children", "holders", "parent", "start", "tokens")

    def __init__(self, tokens: Tokens, start: int, parent: "Node | None") -> None:
        self.tokens = tokens
        self.start = start
        """Depth at which the edge begins."""
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.holders: set[Holder] = set()
        self.checkpoint: Checkpoint | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PrefixTree:
    """Owned by the engine's memory; knows nothing of slots, sizes or costs."""

    def __init__(self) -> None:
        self._root = Node(_ROOT, 0, None)

    def match(self, tokens: Tokens) -> "list[tuple[Node, int]]":
        """The path of `tokens`: nodes from the top with the depth up to which each agrees, deepest last.

        Only the last one's depth can lie inside its edge. Empty when nothing agrees.
        """
        path: list[tuple[Node, int]] = []
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(int(tokens[depth]))
            if child is None:
                break
            agreed = common_length(child.tokens, tokens[depth:])
            depth += agreed
            path.append((child, depth))
            if agreed < len(child.tokens):
                break
            node = child
        return path

    def insert(self, holder: Holder) -> None:
        """Put `holder` on the path of all its tokens."""
        node, depth, tokens = self._root, 0, holder.tokens
        while depth < len(tokens):
            child = node.children.get(int(tokens[depth]))
            if child is None:
                child = Node(tokens[depth:], depth, node)
                node.children[int(tokens[depth])] = child
            else:
                self._split(child, depth + common_length(child.tokens, tokens[depth:]))
            child.holders.add(holder)
            node, depth = child, child.end

    def remove(self, holder: Holder) -> list[Checkpoint]:
        """Take `holder` off; returns the checkpoints that nobody can use without it."""
        orphans = []
        for node in reversed([node for node, _ in self.match(holder.tokens)]):
            node.holders.discard(holder)
            if not node.holders:
                if node.checkpoint is not None:
                    orphans.append(node.checkpoint)
                assert node.parent is not None
                del node.parent.children[int(node.tokens[0])]
            else:
                self._merge(node)
        return orphans

    def attach(self, checkpoint: Checkpoint) -> bool:
        """Hang `checkpoint` at its depth. False: nobody holds its tokens, or one hangs there already."""
        node, depth = next(reversed(self.match(checkpoint.tokens)), (self._root, 0))
        if depth < checkpoint.depth or (depth == node.end and node.checkpoint is not None):
            return False
        self._split(node, depth)
        node.checkpoint = checkpoint
        return True

    def detach(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint that hangs here."""
        node, _ = self.match(checkpoint.tokens)[-1]
        node.checkpoint = None
        self._merge(node)

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents first."""
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _split(self, node: Node, depth: int) -> None:
        """Make `depth` the node's end; what was below becomes its child."""
        if depth == node.end:
            return
        cut = depth - node.start
        rest = Node(node.tokens[cut:], depth, node)
        rest.children, rest.holders, rest.checkpoint = node.children, set(node.holders), node.checkpoint
        for child in rest.children.values():
            child.parent = rest
        node.tokens, node.checkpoint = node.tokens[:cut], None
        node.children = {int(rest.tokens[0]): rest}

    def _merge(self, node: Node) -> None:
        """Join the node with its only child where nothing tells them apart, so that old branches leave no trace."""
        if node.checkpoint is not None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.holders != node.holders:
            return
        node.tokens = np.concatenate([node.tokens, child.tokens])
        node.children, node.checkpoint = child.children, child.checkpoint
        for grandchild in node.children.values():
            grandchild.parent = node


def common_length(one: Tokens, other: Tokens) -> int:
    """How many tokens two arrays have in common at their beginning."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    first = int(differs.argmax()) if shorter else 0
    return first if shorter and differs[first] else shorter
