"""The radix tree against a list of holders: thousands of random insertions, removals, checkpoints and questions."""

import random

import numpy as np
import pytest

from forgelm.engine.prefix import Checkpoint, Holder, PrefixTree, common_length


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Naive:
    """What the tree must know, looked up by comparing everything with everything."""

    def __init__(self) -> None:
        self.holders: list[Holder] = []
        self.checkpoints: list[Checkpoint] = []

    def agreed(self, text: np.ndarray) -> int:
        return max((common_length(holder.tokens, text) for holder in self.holders), default=0)

    def through(self, text: np.ndarray, depth: int) -> set[int]:
        """Who has the first `depth` tokens of `text`."""
        return {id(holder) for holder in self.holders if common_length(holder.tokens, text) >= depth}

    def held(self, checkpoint: Checkpoint) -> bool:
        return len(self.through(checkpoint.tokens, checkpoint.depth)) > 0

    def remove(self, holder: Holder) -> set[int]:
        """The checkpoints that go with it."""
        self.holders.remove(holder)
        gone = {id(checkpoint) for checkpoint in self.checkpoints if not self.held(checkpoint)}
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if id(checkpoint) not in gone]
        return gone


def random_text(rng: random.Random, texts: list[np.ndarray]) -> np.ndarray:
    """Three letters, so that most texts begin alike; often a beginning of another one, or that and more."""
    fresh = tokens(*(rng.randint(0, 2) for _ in range(rng.randint(1, 12))))
    if not texts or rng.random() < 0.3:
        return fresh
    base = rng.choice(texts)
    return np.concatenate([base[: rng.randint(1, len(base))], fresh[: rng.randint(0, len(fresh))]]).astype(np.int32)


def compare(tree: PrefixTree, naive: Naive, text: np.ndarray) -> None:
    path = tree.match(text)
    assert (path[-1][1] if path else 0) == naive.agreed(text)
    for node, depth in path:
        assert {id(holder) for holder in node.holders} == naive.through(text, depth)
        assert depth == min(node.end, naive.agreed(text))
    whole = {node.end: node.checkpoint for node, depth in path if depth == node.end and node.checkpoint}
    expected = {c.depth: c for c in naive.checkpoints if common_length(c.tokens, text) == c.depth}
    assert whole == expected


@pytest.mark.parametrize("seed", range(40))
def test_the_tree_knows_what_a_list_knows(seed: int) -> None:
    rng, tree, naive = random.Random(seed), PrefixTree(), Naive()
    texts: list[np.ndarray] = []
    for _ in range(250):
        text = random_text(rng, texts)
        action = rng.random()
        if action < 0.4:
            holder = Holder(text, len(text))
            tree.insert(holder)
            naive.holders.append(holder)
            texts.append(text)
        elif action < 0.65 and naive.holders:
            holder = rng.choice(naive.holders)
            assert {id(checkpoint) for checkpoint in tree.remove(holder)} == naive.remove(holder)
        elif action < 0.85:
            checkpoint = Checkpoint(text)
            taken = any(np.array_equal(other.tokens, text) for other in naive.checkpoints)
            attached = tree.attach(checkpoint)
            assert attached == (naive.held(checkpoint) and not taken)
            naive.checkpoints += [checkpoint] if attached else []
        elif naive.checkpoints:
            checkpoint = rng.choice(naive.checkpoints)
            naive.checkpoints.remove(checkpoint)
            tree.detach(checkpoint)
        compare(tree, naive, random_text(rng, texts))
    for holder in list(naive.holders):
        tree.remove(holder)
        naive.remove(holder)
    assert not list(tree.nodes()), "nothing is left of what is gone"


def test_old_branches_leave_no_trace() -> None:
    tree, long = PrefixTree(), Holder(np.arange(1000, dtype=np.int32), 1000)
    tree.insert(long)
    for depth in range(1, 1000, 7):
        branch = Holder(np.append(long.tokens[:depth], np.int32(5000)), depth + 1)
        tree.insert(branch)
        tree.remove(branch)
    assert len(list(tree.nodes())) == 1


def test_two_holders_of_one_text_are_two() -> None:
    tree, text = PrefixTree(), tokens(1, 2, 3)
    first, second = Holder(text, 3), Holder(text, 3)
    tree.insert(first)
    tree.insert(second)
    tree.attach(Checkpoint(text[:2]))
    assert tree.remove(first) == []
    assert [checkpoint.depth for checkpoint in tree.remove(second)] == [2]


@pytest.mark.parametrize(
    ("one", "other", "length"), [((), (), 0), ((1,), (), 0), ((1,), (2,), 0), ((1, 2), (1, 2, 3), 2)]
)
def test_common_length(one: tuple[int, ...], other: tuple[int, ...], length: int) -> None:
    assert common_length(tokens(*one), tokens(*other)) == length == common_length(tokens(*other), tokens(*one))
