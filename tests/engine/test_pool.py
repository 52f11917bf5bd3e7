"""The highest of a row, by blocks, against a full sort."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from forgelm.engine.pool import Pool, best, ranked, top_k_ids
from tests.engine.test_sampling import some_logits


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 513, 1023, 10_007, 49_152, 151_937])
@pytest.mark.parametrize("k", [1, 2, 20, 64, 500])
def test_top_k_by_blocks_is_top_k(size: int, k: int) -> None:
    for seed in range(3):
        logits = some_logits(size, seed)
        ids = top_k_ids(logits, k)
        assert len(set(ids.tolist())) == len(ids) == min(k, size)
        assert np.array_equal(np.sort(logits[ids]), np.sort(logits)[-k:])


@given(
    values=stnp.arrays(np.float32, st.integers(1, 1500), elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])),
    k=st.integers(1, 10),
)
def test_of_equal_logits_the_first_are_among_the_top_k(values: np.ndarray, k: int) -> None:
    order = np.argsort(-values, kind="stable")[:k]
    assert top_k_ids(values, k).tolist() == sorted(order.tolist())
    assert ranked(Pool(None, values), k).ids.tolist() == order.tolist()
    assert best(Pool(None, values)).ids.tolist() == order[:1].tolist()


def test_top_k_finds_the_highest_wherever_they_are() -> None:
    """Alone in its block, all in one block, in the part after the last whole block."""
    for places in ([0, 256, 512], [700, 701, 702], [99_998, 99_999, 3]):
        logits = np.full(100_000, -5.0, np.float32)
        logits[places] = [1, 2, 3]
        assert sorted(top_k_ids(logits, 3).tolist()) == sorted(places)


def test_top_k_of_a_vocabulary_copies_no_vocabulary() -> None:
    logits = some_logits(248_320)
    tracemalloc.start()
    top_k_ids(logits, 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < logits.nbytes / 4


def test_places_are_found_in_a_few_and_in_none() -> None:
    tokens = np.array([9, 2, 5, 2, 700, 0], np.int32)
    found, at = Pool(np.array([2, 5, 8]), np.zeros(3, np.float32)).places(tokens)
    assert (tokens[found].tolist(), at.tolist()) == ([2, 5, 2], [0, 1, 0])
    found, at = Pool(np.array([], np.intp), np.zeros(0, np.float32)).places(tokens)
    assert (len(tokens[found]), len(at)) == (0, 0)
