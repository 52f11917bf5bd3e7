"""The bound on cached cells follows what they cost, and nothing else."""

import random

import pytest

from forgelm.engine.cellcost import LEAST_CELLS, SHARE, UNBOUNDED, CellCost


def learnt(slope: float, *, noise: float = 0.0, spread: int = 4000, fixed: int | None = 0, rows: int = 4) -> CellCost:
    """A bound that has seen 2,000 decode steps, 10 ms each and `slope` seconds per row and cell."""
    rng, cost, cells = random.Random(1), CellCost(fixed), 0
    for step in range(2000):
        cells = rng.randint(0, spread) if step % 40 == 0 else cells + rows
        cost.observe(rows, cells, 0.01 + rows * cells * slope + rng.random() * noise)
    return cost


@pytest.mark.parametrize("slope", [1e-6, 3e-6])
@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_the_slope_is_found(slope: float, noise: float) -> None:
    assert learnt(slope, noise=noise).seconds_per_cell == pytest.approx(slope, rel=0.25)


def test_cells_may_cost_a_share_of_a_step() -> None:
    cost = learnt(1e-6)
    assert cost.affordable(4, 0.2) == pytest.approx(SHARE * 0.2 / 4e-6, rel=0.1)
    assert cost.affordable(8, 0.2) < cost.affordable(4, 0.2)


def test_a_chat_and_a_system_prompt_always_have_room() -> None:
    assert learnt(1e-3).affordable(8, 0.01) == LEAST_CELLS


def test_cells_that_cost_nothing_are_not_bounded() -> None:
    assert learnt(0.0).affordable(4, 0.01) > 1_000_000


@pytest.mark.parametrize("cost", [CellCost(), learnt(1e-6, spread=10, rows=1), learnt(1e-6, fixed=None)])
def test_nothing_is_bounded_before_anything_is_known_or_where_it_shall_not_be(cost: CellCost) -> None:
    assert cost.affordable(4, 0.01) == UNBOUNDED


def test_steps_that_others_stretched_are_left_out() -> None:
    rng, cost = random.Random(2), CellCost()
    for step in range(2000):
        cells = 2000 * (step // 40 % 2) + step % 40
        cost.observe(1, cells, 0.01 + cells * 1e-6 + (0.2 if rng.random() < 0.05 else 0.0))
    assert cost.seconds_per_cell == pytest.approx(1e-6, rel=0.3)


def test_a_fixed_bound_is_kept() -> None:
    assert learnt(1e-6, fixed=700).affordable(4, 0.01) == 700
    assert CellCost(700).affordable(0, 0.0) == 700
