"""DRY against the slow one and llama.cpp's own."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.engine.dry import common_lengths, dry_penalties
from forgelm.ipc.messages import Sampling
from tests.engine import llamacpp_samplers, slow_sampling


def words(seed: int, length: int, alphabet: int) -> list[int]:
    """Text that repeats itself now and then, over short and long stretches."""
    rng = random.Random(seed)
    tokens = [rng.randrange(alphabet) for _ in range(5)]
    while len(tokens) < length:
        if rng.random() < 0.2:
            start = rng.randrange(len(tokens))
            tokens += tokens[start : start + rng.choice([2, 5, 30, 100])]
        else:
            tokens.append(rng.randrange(alphabet))
    start = rng.randrange(len(tokens))
    return tokens + tokens[start : start + rng.choice([0, 3, 20, 200])]


DRY = [
    Sampling(dry_multiplier=0.8),
    Sampling(dry_multiplier=1.5, dry_base=1.1, dry_allowed_length=1),
    Sampling(dry_multiplier=0.3, dry_base=1.0, dry_allowed_length=5),
    Sampling(dry_multiplier=0.5, dry_base=2.0, dry_window=40),
    Sampling(dry_multiplier=0.5, dry_base=1.02, dry_window=3),
    Sampling(dry_multiplier=0.5, dry_base=1.0000005, dry_allowed_length=17),
]


def as_dict(tokens: list[int], how: Sampling) -> dict[int, float]:
    ids, penalties = dry_penalties(np.array(tokens, np.int32), how)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), penalties.tolist(), strict=True))


@pytest.mark.parametrize("how", DRY, ids=range(len(DRY)))
@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_dry_is_the_slow_one_and_llama_cpp_s(how: Sampling, alphabet: int) -> None:
    for seed in range(12):
        tokens = words(seed, 150, alphabet)
        got = as_dict(tokens, how)
        assert got == pytest.approx(slow_sampling.dry(tokens, how), rel=1e-5)
        window = len(tokens) if how.dry_window < 0 else how.dry_window
        with llamacpp_samplers.dry(how.dry_multiplier, how.dry_base, how.dry_allowed_length, window) as theirs:
            theirs.accept(tokens)
            left, _ = theirs.apply(np.zeros(alphabet, np.float32))
        # llama.cpp's penalties go up to float32's end, ours to 1e30.
        assert {t: min(-logit, 1e30) for t, logit in left.items() if logit} == pytest.approx(got, rel=1e-4)


@pytest.mark.parametrize("breakers", [[0], [1, 2], [7, 3, 3], [99]])
def test_dry_stops_at_breakers(breakers: list[int]) -> None:
    packed = np.array(breakers, "<i4").tobytes()
    for seed in range(40):
        tokens = words(seed, 150, 10)
        how = Sampling(dry_multiplier=0.8, dry_breakers=packed, dry_allowed_length=1 + seed % 3)
        assert as_dict(tokens, how) == pytest.approx(slow_sampling.dry(tokens, how), rel=1e-5)


def test_dry_finds_a_breaker_far_back() -> None:
    tokens = list(range(1000)) * 2 + list(range(500))
    how = Sampling(dry_multiplier=1.0, dry_base=1.01, dry_breakers=np.array([100], "<i4").tobytes())
    assert as_dict(tokens, how) == {500: pytest.approx(1.01**397)}
    assert as_dict(tokens, Sampling(dry_multiplier=1.0, dry_base=1.01)) == {500: pytest.approx(1.01**1498)}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=120), st.sampled_from([0, 1, 5, 16, 17, 10**9]))
def test_lengths_in_common_are_those_counted_one_by_one(tokens: list[int], limit: int) -> None:
    counted = [0] * len(tokens)
    for place in range(1, len(tokens)):
        while place + counted[place] < len(tokens) and tokens[place + counted[place]] == tokens[counted[place]]:
            counted[place] += 1
    wanted = [min(length, limit) for length in counted]
    assert common_lengths(np.array(tokens, np.int32), limit).tolist() == wanted


@pytest.mark.parametrize("period", [1, 2, 3, 1000])
def test_lengths_in_common_where_a_text_is_one_thing_over_and_over(period: int) -> None:
    tokens = np.tile(np.arange(period, dtype=np.int32), 32_000 // period)
    size = len(tokens)
    wanted = np.where(np.arange(size) % period, 0, size - np.arange(size))
    wanted[0] = 0
    assert np.array_equal(common_lengths(tokens, size), wanted)


def test_the_strongest_dry_leaves_something_to_draw() -> None:
    how = Sampling(dry_multiplier=1e30, dry_base=100.0)
    penalty = as_dict([1, 2] * 2000, how)[1]
    assert np.isfinite(np.float32(5) - np.float32(penalty))
