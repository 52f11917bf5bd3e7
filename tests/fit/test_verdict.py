"""The verdict on a profile: as asked, less something, or a refusal that says what would fit."""

from pathlib import Path

import msgspec
import pytest

from forgelm.config import Cache, Profile
from forgelm.errors import MachineError, ModelError
from forgelm.fit.budget import Budget
from forgelm.fit.ladder import Ladder, Setting
from forgelm.fit.verdict import judge, model_shape
from tests.fit.shapes import GIB, QWEN_4B, QWEN_9B, budget, shipped


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


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_where_there_is_one(starter_path: Path) -> None:
    shape = model_shape(profile("starter"), starter_path)
    assert (shape.source, len(shape.layers)) == ("the file's header", 30)


def test_without_a_file_its_name_may_do(tmp_path: Path) -> None:
    assert model_shape(profile(), tmp_path / "none.gguf") == QWEN_4B


def test_without_either_it_cant_be_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model file at .*none\.gguf, and the shape of SmolLM2"):
        model_shape(profile("starter"), tmp_path / "none.gguf")
