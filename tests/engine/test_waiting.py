"""Which texts share a decode."""

import numpy as np
import pytest

from forgelm.engine.waiting import Waiting
from forgelm.ipc.embeddings import Embed


def queue(*texts: tuple[int, int]) -> Waiting:
    """A queue of (request, tokens), the texts of a request in order."""
    waiting = Waiting()
    counts: dict[int, int] = {}
    for request, size in texts:
        index = counts[request] = counts.get(request, -1) + 1
        waiting.add(Embed(request, index, np.full(size, request, "<i4").tobytes()))
    return waiting


def taken(waiting: Waiting, rows: int = 100, most: int = 8) -> list[tuple[int, int]]:
    """(request, index) of the next decode."""
    texts = waiting.take(rows, most)
    assert all(set(text.tokens.tolist()) == {text.request} for text in texts)
    return [(text.request, text.index) for text in texts]


def test_one_request_is_taken_in_order() -> None:
    waiting = queue(*[(1, 10)] * 5)
    assert taken(waiting, most=3) == [(1, 0), (1, 1), (1, 2)]
    assert taken(waiting, most=3) == [(1, 3), (1, 4)]
    assert not waiting


def test_requests_take_turns() -> None:
    """Two thousand texts don't hold up one."""
    waiting = queue(*[(1, 10)] * 2000, (2, 10))
    assert taken(waiting, most=2) == [(1, 0), (2, 0)]


def test_turns_go_on_in_the_next_decode() -> None:
    waiting = queue(*[(request, 10) for request in (1, 2, 3) for _ in range(3)])
    orders = [taken(waiting, most=2) for _ in range(4)]
    assert orders == [[(1, 0), (2, 0)], [(3, 0), (1, 1)], [(2, 1), (3, 1)], [(1, 2), (2, 2)]]


def test_rows_are_never_exceeded_by_several_texts() -> None:
    waiting = queue((1, 60), (2, 50), (3, 40))
    assert taken(waiting) == [(1, 0), (3, 0)]
    assert taken(waiting) == [(2, 0)]


def test_a_text_longer_than_a_decode_of_several_goes_alone() -> None:
    waiting = queue((1, 500), (2, 10))
    assert taken(waiting) == [(1, 0)]
    assert taken(waiting) == [(2, 0)]


def test_a_long_text_is_not_passed_over_for_ever() -> None:
    """Short ones keep coming: the long one is first in the decode after the one that it didn't fit into."""
    waiting = queue((1, 10), (2, 100))
    assert taken(waiting) == [(1, 0)]
    waiting.add(Embed(3, 0, np.full(10, 3, "<i4").tobytes()))
    assert taken(waiting) == [(2, 0)]
    assert taken(waiting) == [(3, 0)]


def test_what_is_forgotten_is_not_taken() -> None:
    waiting = queue((1, 10), (2, 10), (1, 10))
    waiting.forget(1)
    waiting.forget(7)
    assert taken(waiting) == [(2, 0)]
    assert not waiting


@pytest.mark.parametrize("seed", range(5))
def test_every_text_is_taken_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [(int(rng.integers(1, 9)), int(rng.integers(1, 130))) for _ in range(200)]
    waiting, seen = queue(*texts), list[tuple[int, int]]()
    while waiting:
        batch = waiting.take(100, 6)
        sizes = [len(text.tokens) for text in batch]
        assert 1 <= len(batch) <= 6
        assert sum(sizes) <= 100 or len(batch) == 1
        seen += [(text.request, text.index) for text in batch]
    assert len(seen) == len(set(seen)) == len(texts)
    for request in {each[0] for each in texts}:
        indices = [index for other, index in seen if other == request]
        assert indices == sorted(indices)
