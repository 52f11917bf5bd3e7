"""A grammar's bits, read in every way there is."""

import numpy as np
import pytest

from forgelm.engine.masks import allows_few, are_allowed, gathered, is_allowed, struck_out
from tests.engine.slow_sampling import FixedMask
from tests.engine.test_sampling import some_logits


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000, 4096 + 5])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_mask_says_the_same_however_it_is_read(vocabulary: int, share: float) -> None:
    rng = np.random.default_rng(vocabulary)
    wanted = np.flatnonzero(rng.random(vocabulary) < share)
    logits = some_logits(vocabulary)
    mask = FixedMask(wanted.tolist(), vocabulary).mask()
    assert mask is not None
    pool = gathered(logits, mask)
    assert np.array_equal(pool.ids, wanted)
    assert np.array_equal(pool.logits, logits[wanted])
    assert np.array_equal(np.flatnonzero(struck_out(logits, mask) > -np.inf), wanted)
    assert np.array_equal(np.flatnonzero(are_allowed(mask, np.arange(vocabulary))), wanted)
    assert [token for token in range(vocabulary) if is_allowed(mask, token)] == wanted.tolist()


def test_bits_past_the_vocabulary_and_tokens_past_the_mask_are_not_allowed() -> None:
    logits = np.arange(40, dtype=np.float32)
    beyond = np.array([0, -1 & 0xFFFFFF00 - 0x100000000], np.int64).astype(np.int32)  # bits 8 and up of the second word
    assert not len(gathered(logits, beyond).ids)
    assert not np.isfinite(struck_out(logits, beyond)).any()
    short = np.array([1 << 5], np.int32)
    assert gathered(logits, short).ids.tolist() == [5]
    assert np.flatnonzero(np.isfinite(struck_out(logits, short))).tolist() == [5]
    assert np.flatnonzero(are_allowed(short, np.arange(40))).tolist() == [5]
    assert not is_allowed(short, 37)
    assert allows_few(short, 64)


@pytest.mark.parametrize("word", [-1, 0x7FFFFFFF, -(2**31) + 0xFF])
def test_many_are_never_few(word: int) -> None:
    assert not allows_few(np.full(128, word, np.int32), 4096)
    assert allows_few(np.array([word] + [0] * 127, np.int32), 4096)
