"""The prefill budget: what the pacer learns from steps, and that it never leaves its bounds whatever it is told."""

import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.config import MIN_CHUNK, Mode
from forgelm.engine.pacing import ALONE_SECONDS, DECODE_STEPS, FLOOR_SECONDS, Pacer

UBATCH = 512
modes = st.sampled_from(get_args(Mode))


def pacer(*, mode: Mode = "low_latency", target: float = 0.0, ubatch: int = UBATCH, row: float = 0.001) -> Pacer:
    return Pacer(mode, target, ubatch, row)


def teach(learner: Pacer, *, step: float, row: float, rounds: int = 60, noise: float = 0.0, seed: int = 0) -> None:
    """Steps of a machine that takes `step` for a decode and `row` for each prefill row."""
    rng = random.Random(seed)
    for number in range(rounds):
        decoders = 1 + number % 4
        rows = 0 if number % 3 == 0 else learner.prefill_rows(decoders)
        learner.observe(decoders, rows, (step + rows * row) * (1 + noise * rng.uniform(-1, 1)))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_every_mode_has_its_numbers(mode: Mode) -> None:
    assert 0 < FLOOR_SECONDS[mode] <= 1
    assert DECODE_STEPS[mode] > 1


@pytest.mark.parametrize(("step", "row"), [(0.010, 0.0002), (0.025, 0.001), (0.2, 0.004)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_step_with_decoders_ends_near_the_target_once_the_costs_are_learnt(
    step: float, row: float, noise: float
) -> None:
    for guess in (row / 20, row, row * 20):
        learner = pacer(row=guess, ubatch=4096)
        teach(learner, step=step, row=row, noise=noise)
        for decoders in range(1, 5):
            seconds = step + learner.prefill_rows(decoders) * row
            assert seconds == pytest.approx(learner.target(decoders), rel=0.15 + 2 * noise)


def test_what_it_predicts_is_what_steps_take() -> None:
    learner = pacer(row=0.01)
    teach(learner, step=0.02, row=0.001)
    assert learner.predict(3, 0) == pytest.approx(0.02, rel=0.05)
    assert learner.predict(3, 100) == pytest.approx(0.12, rel=0.1)
    assert learner.predict(0, 100) == pytest.approx(0.1, rel=0.1)
    assert learner.predict(0, 0) == 0.0


def test_a_machine_that_becomes_slower_gets_smaller_chunks_and_back() -> None:
    """Another program takes half the cores: the target stays."""
    learner = pacer(target=100)
    teach(learner, step=0.02, row=0.0005)
    before = learner.prefill_rows(2)
    teach(learner, step=0.04, row=0.001)
    assert 0.04 + learner.prefill_rows(2) * 0.001 == pytest.approx(0.1, rel=0.15)
    teach(learner, step=0.02, row=0.0005)
    assert learner.prefill_rows(2) == pytest.approx(before, rel=0.15)


def test_one_hiccup_is_forgotten() -> None:
    learner = pacer(target=100)
    teach(learner, step=0.02, row=0.001)
    before = learner.prefill_rows(1)
    learner.observe(1, 80, 5.0)
    teach(learner, step=0.02, row=0.001, rounds=45)
    assert learner.prefill_rows(1) == pytest.approx(before, rel=0.15)


def test_a_fixed_target_wins_over_the_mode() -> None:
    for mode in get_args(Mode):
        learner = pacer(mode=mode, target=60)
        teach(learner, step=0.02, row=0.001)
        assert learner.target(3) == 0.06
        assert learner.target(0) == ALONE_SECONDS


def test_high_throughput_offers_prefill_more_time() -> None:
    chunks = []
    for mode in get_args(Mode):
        learner = pacer(mode=mode, ubatch=10_000)
        teach(learner, step=0.05, row=0.001)
        chunks.append((mode, learner.prefill_rows(2)))
    assert dict(chunks)["high_throughput"] > dict(chunks)["low_latency"]


def test_with_nobody_decoding_a_chunk_is_larger_but_still_bounded_in_time() -> None:
    learner = pacer(ubatch=10_000)
    teach(learner, step=0.02, row=0.001)
    assert learner.prefill_rows(0) > learner.prefill_rows(1)
    assert learner.prefill_rows(0) * 0.001 <= ALONE_SECONDS * 1.15


def test_a_number_of_decoders_never_seen_is_taken_for_the_nearest() -> None:
    learner = pacer()
    learner.observe(2, 0, 0.02)
    learner.observe(8, 0, 0.08)
    assert learner.decode_seconds(1) == learner.decode_seconds(2) == pytest.approx(0.02)
    assert learner.decode_seconds(30) == pytest.approx(0.08)


def test_a_chunk_too_small_to_tell_a_rate_from_teaches_nothing() -> None:
    """Two rows in a step of 20 ms would make a row cost 10 ms."""
    learner = pacer()
    before = learner.prefill_rows(1)
    learner.observe(0, 2, 0.02)
    assert learner.prefill_rows(1) == before


def test_a_step_that_ran_nothing_teaches_nothing() -> None:
    learner = pacer()
    before = learner.prefill_rows(0)
    learner.observe(0, 0, 0.0)
    assert learner.prefill_rows(0) == before


@given(
    mode=modes,
    target=st.sampled_from([0.0, 1.0, 50.0, 5000.0]),
    row=st.floats(1e-9, 100.0),
    steps=st.lists(st.tuples(st.integers(0, 16), st.integers(0, UBATCH), st.floats(1e-7, 1e4)), max_size=60),
    decoders=st.integers(0, UBATCH - MIN_CHUNK),
)
def test_a_chunk_stays_within_its_bounds_whatever_steps_took(
    mode: Mode, target: float, row: float, steps: list[tuple[int, int, float]], decoders: int
) -> None:
    learner = pacer(mode=mode, target=target, row=row)
    for decode_rows, prefill_rows, seconds in steps:
        learner.observe(decode_rows, prefill_rows, seconds)
    assert MIN_CHUNK <= learner.prefill_rows(decoders) <= UBATCH - decoders
    assert 0 <= learner.predict(decoders, 100) < float("inf")
