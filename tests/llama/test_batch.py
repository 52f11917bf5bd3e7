"""The arrays of a decode: what llama.cpp reads, and what a batch refuses."""

import pytest

from forgelm.llama.batch import Batch
from tests.llama.drive import ids


def read(batch: Batch) -> list[tuple[int, int, int, int, int]]:
    """(token, position, ids per row, slot, logits) of each row, through the pointers that llama.cpp gets."""
    handle = batch.handle
    return [
        (handle.token[at], handle.pos[at], handle.n_seq_id[at], handle.seq_id[at][0], handle.logits[at])
        for at in range(handle.n_tokens)
    ]


def test_rows_are_where_llama_reads_them() -> None:
    batch = Batch(8)
    assert batch.add(3, ids([10, 11, 12]), 5, outputs=1) == 2
    assert batch.add(0, ids([20]), 9, outputs=0) == 3
    assert batch.add(3, ids([13]), 8, outputs=1) == 4
    assert read(batch) == [
        (10, 5, 1, 3, 0),
        (11, 6, 1, 3, 0),
        (12, 7, 1, 3, 1),
        (20, 9, 1, 0, 0),
        (13, 8, 1, 3, 1),
    ]
    assert (batch.size, batch.outputs, batch.counts) == (5, 2, {3: 4, 0: 1})


def test_a_cleared_batch_is_empty_to_llama_too() -> None:
    """Its row count stayed once, so a decode of nothing computed the last rows again."""
    batch = Batch(4)
    batch.add(1, ids([7, 8]), 0, outputs=1)
    batch.clear()
    assert (read(batch), batch.size, batch.outputs, batch.counts) == ([], 0, 0, {})


def test_nothing_of_an_earlier_batch_shows() -> None:
    batch = Batch(4)
    batch.add(1, ids([7, 8, 9, 10]), 30, outputs=1)
    batch.clear()
    batch.add(2, ids([1]), 0, outputs=0)
    batch.add(2, ids([2, 3, 4]), 1, outputs=0)
    assert read(batch) == [(at + 1, at, 1, 2, 0) for at in range(4)]


def test_a_full_batch_takes_no_more() -> None:
    batch = Batch(4)
    with pytest.raises(ValueError, match="batch of 4 rows that holds 0 can't take 5"):
        batch.add(0, ids([1] * 5), 0, outputs=1)
    batch.add(0, ids([1] * 3), 0, outputs=1)
    with pytest.raises(ValueError, match="batch of 4 rows that holds 3 can't take 2"):
        batch.add(1, ids([1] * 2), 0, outputs=1)
    batch.add(1, ids([2]), 0, outputs=1)
    assert (batch.size, batch.counts) == (4, {0: 3, 1: 1})
    assert read(batch)[3] == (2, 0, 1, 1, 1)


def test_rows_without_tokens_are_refused() -> None:
    """They moved the request for logits to the row before."""
    batch = Batch(4)
    batch.add(0, ids([5]), 0, outputs=0)
    with pytest.raises(ValueError, match="can't take 0"):
        batch.add(1, ids([]), 0, outputs=1)
    assert read(batch) == [(5, 0, 1, 0, 0)]
