"""What steps are predicted to cost: interpolated, learned, and not led astray by hiccups or by other sequences."""

import random

import pytest

from forgelm.engine.stepcost import DraftCost, Shape, StepCost
from tests.engine.simulation import CPU, curve


def teach(costs: StepCost, sequences: int, rows: int, seconds: float, *, rounds: int = 100, noise: float = 0.0) -> None:
    rng = random.Random(7)
    for _ in range(rounds):
        costs.observe(Shape(sequences, rows), seconds * (1 + noise * rng.uniform(-1, 1)))


def test_what_was_measured_is_interpolated() -> None:
    costs = StepCost({1: 1.0, 3: 2.0, 5: 6.0})
    assert [costs.seconds(1, rows) for rows in (1, 2, 3, 4, 5)] == pytest.approx([1.0, 1.5, 2.0, 4.0, 6.0])


def test_more_rows_may_cost_less() -> None:
    costs = StepCost(CPU)
    assert costs.seconds(1, 64) < costs.seconds(1, 48) < costs.seconds(1, 47) + 1


def test_a_curve_that_was_not_measured_is_learned() -> None:
    costs = StepCost({})
    assert costs.stale
    teach(costs, 1, 1, 0.02, noise=0.2)
    teach(costs, 1, 5, 0.03, noise=0.2)
    assert costs.seconds(1, 1) == pytest.approx(0.02, rel=0.1)
    assert costs.seconds(1, 5) / costs.seconds(1, 1) == pytest.approx(1.5, rel=0.1)


def test_a_wrong_measurement_is_corrected_in_a_few_steps() -> None:
    costs = StepCost({1: 0.01, 8: 0.011})
    teach(costs, 1, 1, 0.01, rounds=20)
    teach(costs, 1, 8, 0.04, rounds=12)
    assert costs.seconds(1, 8) == pytest.approx(0.04, rel=0.15)


def test_a_growing_context_scales_the_whole_curve() -> None:
    costs = StepCost(CPU)
    for step in range(2_000):
        costs.observe(Shape(1, 1), 1 + step / 2_000)
    assert costs.seconds(1, 6) == pytest.approx(2 * CPU[6], rel=0.05)


def test_a_hiccup_changes_little() -> None:
    costs = StepCost(CPU)
    teach(costs, 1, 1, 1.0)
    teach(costs, 1, 4, CPU[4])
    costs.observe(Shape(1, 4), 10 * CPU[4])
    costs.observe(Shape(1, 1), 10.0)
    assert costs.seconds(1, 4) == pytest.approx(CPU[4], rel=0.15)


def test_other_sequences_are_believed_at_once() -> None:
    costs = StepCost(CPU)
    teach(costs, 1, 1, 3.0)
    costs.change_mix()
    before = costs.stale
    teach(costs, 1, 1, 1.0, rounds=5)
    assert (before, costs.stale) == (True, False)
    assert costs.seconds(1, 1) == pytest.approx(1.0, rel=0.15)


def test_of_two_decodes_the_one_with_guesses_is_learned() -> None:
    costs = StepCost(CPU)
    teach(costs, 4, 4, CPU[4])
    for _ in range(100):
        costs.observe(Shape(4, 8, apart=2, apart_rows=6), 2 * CPU[6] + CPU[2])
    assert costs.seconds(2, 6) == pytest.approx(2 * CPU[6], rel=0.1)
    assert costs.of(Shape(4, 8, 2, 6)) == pytest.approx(2 * CPU[6] + CPU[2], rel=0.1)


def test_guesses_never_seem_to_cost_less_than_nothing() -> None:
    costs = StepCost({1: 1.0, 4: 0.5})
    assert costs.lost(Shape(1, 4), 3) >= 0.0
    assert costs.lost(Shape(1, 1), 0) == 0.0


def test_guesses_are_charged_more_while_their_cost_is_not_known_well() -> None:
    costs = StepCost(CPU)
    teach(costs, 1, 1, 1.0)
    before = costs.lost(Shape(1, 4), 3)
    teach(costs, 1, 4, CPU[4])
    after = costs.lost(Shape(1, 4), 3)
    assert curve(CPU, 4) - 1 < after < before


def test_a_guess_of_a_model_costs_what_it_cost_for_as_many() -> None:
    drafts = DraftCost()
    assert drafts.each(1, 0.02) == pytest.approx(0.002)
    drafts.observe(1, 4, 0.04)
    drafts.observe(8, 32, 0.08)
    assert drafts.each(1, 0.02) == pytest.approx(0.01)
    assert drafts.each(7, 0.02) == pytest.approx(0.0025)
