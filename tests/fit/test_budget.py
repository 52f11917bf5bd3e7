"""What there is: free memory less a margin, on this machine or on one that is supposed."""

import pytest

from forgelm.config import Cache
from forgelm.fit import budget as budgets
from forgelm.fit.budget import MARGIN, Budget, Pool, budget_of, host_tier_bytes, imagined_card, present_budget
from forgelm.fit.need import Need, Part
from forgelm.machine import Gpu, Gpus, Memory
from tests.fit.shapes import GIB, MIB

MEMORY = Memory(total=16 * GIB, available=10 * GIB, limit=None)


def card(total: int, free: int, name: str = "NVIDIA GeForce RTX 3070") -> Gpu:
    return Gpu(0, "GPU-a", name, "0000:01:00.0", total, free, "580", (8, 6))


def test_the_desktops_share_and_a_margin_are_not_to_be_had() -> None:
    pool = Pool("x", 8 * GIB, 7 * GIB)
    assert (pool.others, pool.margin, pool.usable) == (GIB, MARGIN, 7 * GIB - MARGIN)
    assert Pool("large", 64 * GIB, 64 * GIB).margin == 2 * GIB
    assert Pool("full", 8 * GIB, 100 * MIB).usable == 0


def test_a_machine_without_cards_has_ram() -> None:
    budget = budget_of(MEMORY, ())
    assert (budget.gpu, budget.cards) == (None, 0)
    assert (budget.host.total, budget.host.free) == (16 * GIB, 10 * GIB)


def test_the_cgroups_limit_is_the_total() -> None:
    assert budget_of(Memory(16 * GIB, 3 * GIB, limit=4 * GIB), ()).host.total == 4 * GIB


def test_cards_are_added_up() -> None:
    budget = budget_of(MEMORY, (card(8 * GIB, 7 * GIB), card(12 * GIB, 11 * GIB, "NVIDIA RTX 3060")))
    assert budget.gpu is not None
    assert (budget.cards, budget.gpu.total, budget.gpu.free) == (2, 20 * GIB, 18 * GIB)
    assert budget.gpu.name == "GeForce RTX 3070 + RTX 3060"


def test_a_model_goes_to_the_emptiest_card_and_to_none_without_llama_cpps_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = (card(12 * GIB, 3 * GIB, "NVIDIA RTX 3060"), card(8 * GIB, 7 * GIB), card(8 * GIB, 1 * GIB))
    monkeypatch.setattr(budgets, "read_gpus", lambda: Gpus(cards=cards))
    monkeypatch.setattr(budgets, "read_memory", lambda: MEMORY)
    assert present_budget(gpu=True) == budget_of(MEMORY, cards[1:2])
    assert present_budget(gpu=False) == budget_of(MEMORY, ())


def test_a_supposed_card() -> None:
    found = imagined_card(8 * GIB, GIB)
    assert (found.total, found.free) == (8 * GIB, 7 * GIB)
    assert imagined_card(GIB, 2 * GIB).free == 0


@pytest.mark.parametrize(("gpu", "host", "holds"), [(6, 5, True), (7, 5, False), (6, 10, False), (0, 0, True)])
def test_both_kinds_have_to_hold(gpu: int, host: int, holds: bool) -> None:
    budget = Budget(Pool("RAM", 16 * GIB, 10 * GIB), Pool("a card", 8 * GIB, 7 * GIB), 1)
    assert budget.holds(Need((Part("x", gpu * GIB, host * GIB),))) is holds


def test_without_a_card_nothing_goes_on_one() -> None:
    assert not Budget(Pool("RAM", GIB, GIB)).holds(Need((Part("x", gpu=1),)))


@pytest.mark.parametrize(
    ("cache", "free", "tier"),
    [
        (Cache(), 8 * GIB, 2 * GIB),
        (Cache(host_bytes=3 * GIB), 8 * GIB, 3 * GIB),
        (Cache(host_bytes=30 * GIB), 8 * GIB, 4 * GIB),
        (Cache(host_tier=False), 8 * GIB, 2 * GIB),
        (Cache(prefix_cache=False), 8 * GIB, 0),
        (Cache(), -GIB, 0),
    ],
)
def test_the_host_tier_takes_a_share_of_what_is_left(cache: Cache, free: int, tier: int) -> None:
    assert host_tier_bytes(cache, free) == tier
