"""The verdict on a profile: as asked, less something, or a refusal that says what would fit."""

from pathlib import Path

import msgspec
import pytest

from forgelm.config import Cache, Profile, Speculation, SpeculationWord
from forgelm.drafting import ways
from forgelm.errors import MachineError, ModelError
from forgelm.fit import need
from forgelm.fit.budget import Budget
from forgelm.fit.ladder import Ladder, Setting
from forgelm.fit.local import model_shape
from forgelm.fit.shapes import Shape
from forgelm.fit.verdict import Verdict, Ways, judge
from forgelm.ipc.start import Drafting
from tests.fit.shapes import DENSE, GIB, QWEN_4B, QWEN_9B, budget, shipped


def profile(name: str = "turbo_4b", **engine: int | str) -> Profile:
    return shipped(name).with_overrides({f"engine.{key}": value for key, value in engine.items()})


def test_what_fits_is_served_as_asked() -> None:
    verdict = judge(profile(), QWEN_4B, budget(7.5))
    assert (verdict.profile, verdict.steps) == (profile(), ())
    assert verdict.summary == "4.7 of 7.2 GiB on a card, 0.8 of 15.0 GiB RAM"


def test_what_doesnt_is_stepped_down_and_nothing_else_changes() -> None:
    verdict = judge(profile(), QWEN_4B, budget(4.4))
    assert verdict.steps
    assert budget(4.4).holds(verdict.need)
    engine = msgspec.structs.replace(profile().engine, context=verdict.profile.engine.context)
    assert verdict.profile.engine == engine
    assert verdict.profile.model == profile().model


@pytest.mark.parametrize(
    ("wanted", "pinned"),
    [
        (profile(fit="strict"), frozenset()),
        (profile(), frozenset({"engine.context", "cache.sequences", "engine.n_gpu_layers", "engine.kv_type"})),
    ],
)
def test_a_refusal_names_what_would_fit(wanted: Profile, pinned: frozenset[str]) -> None:
    """Strict profiles, and flags that leave nothing to give up."""
    with pytest.raises(MachineError) as caught:
        judge(wanted, QWEN_4B, budget(4.0), pinned=pinned)
    message = str(caught.value)
    assert "turbo_4b doesn't fit: it takes 4.7 GiB of GPU memory, and 3.8 GiB are free on a card" in message
    assert message.endswith("It would fit with context 65,536 → 32,768, requests at once 4 → 2, kept sequences 4 → 1")
    assert "\n" not in message


def test_what_the_refusal_names_does_fit() -> None:
    room = budget(4.0)
    found = Ladder(QWEN_4B, room).descend(Setting(profile().engine, Cache()))
    with pytest.raises(MachineError) as caught:
        judge(profile(fit="strict"), QWEN_4B, room)
    assert all(step in str(caught.value) for step in found.steps)
    assert room.holds(Ladder(QWEN_4B, room).need(found.setting))


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (budget(8.0, 0.5), "takes 0.8 GiB of RAM, and 0.0 GiB are free. Even with one layer on the GPU"),
        (budget(0.3, 16.0), "0.0 GiB are free on a card. Its weights alone are"),
        (budget(None, 3.0), "2.0 GiB are free. Its weights alone are 5.3 GiB, and there is nothing left to give up"),
    ],
)
def test_where_nothing_fits(room: Budget, said: str) -> None:
    with pytest.raises(MachineError) as caught:
        judge(profile("balanced_9b"), QWEN_9B, room)
    assert said in str(caught.value)


def test_off_doesnt_look() -> None:
    verdict = judge(profile(fit="off"), QWEN_4B, budget(1.0))
    assert verdict.profile == profile(fit="off")


def test_the_host_tier_is_a_share_of_what_is_left() -> None:
    verdict = judge(profile(), QWEN_4B, budget(7.5, 16.0))
    assert verdict.host_tier == (16 * GIB - verdict.need.host) // 4


# --- speculation ------------------------------------------------------------------------------------------------------


def guessing(
    name: str, shape: Shape, speculation: SpeculationWord | Speculation = "auto", *, free: float, fit: str = "adjust"
) -> Verdict:
    """The verdict `forgelm serve` reaches with so much free on the card."""
    wanted = msgspec.structs.replace(profile(name, fit=fit), speculation=speculation)
    possible = ways(wanted, Path("not here"), shape, on_gpu=True)
    return judge(wanted, shape, budget(free), ways=possible)


def test_with_room_all_that_is_wanted_is_used() -> None:
    verdict = guessing("turbo_4b", QWEN_4B, free=7.5)
    assert (verdict.steps, verdict.speculation.drafting.drafters) == ((), ("ngram", "mtp"))
    assert verdict.speculation.drafting.rollback == 3
    assert verdict.need.part("MTP head").gpu
    assert budget(7.5).holds(verdict.need)


def test_an_8_gb_card_that_is_short_starts_with_speculation_off_and_says_so() -> None:
    """Qwen3.5-9B beside a desktop that takes 1.4 GiB: the model fits as asked, the head and its states don't."""
    verdict = guessing("balanced_9b", QWEN_9B, free=6.5)
    assert verdict.steps == ("speculation off: the draft would not fit",)
    assert verdict.profile.engine == profile("balanced_9b").engine
    assert not verdict.speculation.drafting.on
    assert verdict.need == Ladder(QWEN_9B, budget(6.5)).need(Setting(verdict.profile.engine, Cache()))


def test_fewer_guesses_come_before_none() -> None:
    verdict = guessing("balanced_9b", QWEN_9B, free=7.5)
    assert verdict.steps == ("tokens guessed at once 3 → 2",)
    assert verdict.speculation.drafting.rollback == 2


def test_the_draft_goes_before_anything_else() -> None:
    verdict = guessing("balanced_9b", QWEN_9B, free=5.9)
    assert verdict.steps[0] == "speculation off: the draft would not fit"
    assert len(verdict.steps) > 1
    without = judge(profile("balanced_9b"), QWEN_9B, budget(5.9))
    assert (verdict.steps[1:], verdict.profile.engine) == (without.steps, without.profile.engine)


def test_however_little_is_free_speculation_never_costs_the_start() -> None:
    """Where the model itself fits in some way, it starts, in the sizes it has without speculation."""
    for tenths in range(20, 80):
        free = tenths / 10
        without = judge(profile("balanced_9b"), QWEN_9B, budget(free))
        verdict = guessing("balanced_9b", QWEN_9B, free=free)
        assert verdict.profile.engine == without.profile.engine
        assert budget(free).holds(verdict.need)
        assert verdict.speculation.drafting.on or verdict.steps[0].startswith("speculation off")


def test_a_named_drafter_that_doesnt_fit_is_turned_off_too() -> None:
    verdict = guessing("balanced_9b", QWEN_9B, Speculation("mtp"), free=6.5)
    assert verdict.steps == ("speculation off: the draft would not fit",)


def test_a_strict_profile_is_refused_with_the_drafter_it_names() -> None:
    with pytest.raises(MachineError) as caught:
        guessing("balanced_9b", QWEN_9B, Speculation("mtp"), free=6.5, fit="strict")
    assert "balanced_9b doesn't fit: it takes 7." in str(caught.value)
    assert str(caught.value).endswith("It would fit with speculation off")


def test_a_strict_profile_that_names_none_takes_what_fits() -> None:
    verdict = guessing("balanced_9b", QWEN_9B, free=6.5, fit="strict")
    assert verdict.steps == ("speculation off: the draft would not fit",)


def test_what_isnt_looked_at_is_taken_in_full() -> None:
    verdict = guessing("balanced_9b", QWEN_9B, free=1.0, fit="off")
    assert (verdict.steps, verdict.speculation.drafting.drafters) == ((), ("ngram", "mtp"))


def test_ngram_stays_where_it_costs_nothing() -> None:
    """An attention model with a draft model that has no room."""
    both = Ways(
        (need.Speculation(Drafting(ngram=True, draft="large"), draft=DENSE), need.Speculation(Drafting(ngram=True)))
    )
    verdict = judge(profile(), DENSE, budget(9.5), ways=both)
    assert verdict.steps == ("speculation by n-gram alone: the draft would not fit",)
    assert verdict.speculation.drafting == Drafting(ngram=True)


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_where_there_is_one(starter_path: Path) -> None:
    shape = model_shape(profile("starter"), starter_path)
    assert (shape.source, len(shape.layers)) == ("the file's header", 30)


def test_without_a_file_its_name_may_do(tmp_path: Path) -> None:
    assert model_shape(profile(), tmp_path / "none.gguf") == QWEN_4B


def test_without_either_it_cant_be_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model file at .*none\.gguf, and the shape of SmolLM2"):
        model_shape(profile("starter"), tmp_path / "none.gguf")
