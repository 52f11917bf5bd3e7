"""What a tuning searches: default axes, axes that are given, and what contradicts itself."""

import msgspec
import pytest

from forgelm.bench.space import (
    MODEL,
    Axis,
    Facts,
    Value,
    chosen,
    current,
    default_axes,
    grid,
    label,
    parse_axis,
    settle,
)
from forgelm.config import ModelSource, Preset, Profile, Speculation
from forgelm.errors import ConfigError

BASE = Profile(name="p", model=ModelSource(id="m", file="m.gguf"))
CPU = Facts(models=("a.gguf",), cores=4, context_train=32768)
GPU = Facts(models=("a.gguf", "b.gguf"), cores=4, layers_on_gpu=33, context_train=32768, has_head=True)


def axes(facts: Facts, base: Profile = BASE) -> dict[str, tuple[Value, ...]]:
    return {axis.key: axis.values for axis in default_axes(base, facts)}


def test_default_axes_are_in_the_missions_order_without_the_profiles_own_values() -> None:
    found = axes(GPU)
    assert list(found) == [
        MODEL, "engine.n_gpu_layers", "engine.context", "engine.flash_attention", "engine.kv_type", "engine.n_batch",
        "engine.n_ubatch", "engine.threads", "speculation", "engine.parallel", "engine.mode",
    ]  # fmt: skip
    assert found[MODEL] == ("b.gguf",)
    assert found["engine.n_gpu_layers"] == (24, 16)
    assert found["engine.context"] == (16384, 32768)
    assert found["engine.kv_type"] == ("q8_0", "q4_0")
    assert found["engine.n_ubatch"] == (128, 256, 1024)
    assert found["engine.threads"] == (2, 3)
    assert "mtp:2" in found["speculation"]


def test_what_a_cpu_has_nothing_of_is_no_axis() -> None:
    found = axes(CPU)
    assert not {MODEL, "engine.n_gpu_layers"} & found.keys()
    assert found["speculation"] == ("off",)
    assert "engine.context" not in axes(Facts(cores=1, context_train=8192))
    assert "engine.threads" not in axes(Facts(cores=1))


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("engine.n_ubatch=128, 256", Axis("engine.n_ubatch", (128, 256))),
        ("n_ubatch=1_024", Axis("engine.n_ubatch", (1024,))),
        ("kv_type=q8_0,q4_0", Axis("engine.kv_type", ("q8_0", "q4_0"))),
        ("target_itl_ms=20,12.5", Axis("engine.target_itl_ms", (20, 12.5))),
        ("engine.device=0,cpu", Axis("engine.device", ("0", "cpu"))),
        ("cache.prefix_cache=false", Axis("cache.prefix_cache", (False,))),
        ("speculation=off,ngram:4", Axis("speculation", ("off", "ngram:4"))),
        ("n_batch=128", Axis("engine.n_batch", (128,))),
    ],
)
def test_axes_that_are_given(text: str, axis: Axis) -> None:
    """The last contradicts the profile's n_ubatch, but not that of another candidate."""
    assert parse_axis(text, BASE) == axis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_ubatch", "an axis is KEY=VALUE"),
        ("n_ubatch=", "an axis is KEY=VALUE"),
        ("n_ubatch=16", "can't be '16'"),
        ("n_ubatch=many", "can't be 'many'"),
        ("kv_type=q5_1", "can't be 'q5_1'"),
        ("engine.wings=2", "there is no setting 'engine.wings'"),
        ("wings=2", "there is no setting 'wings'"),
        ("model=a.gguf", "given by --model"),
        ("speculation=magic", "speculation is one of"),
        ("speculation=ngram:99", "can't be 'ngram:99'"),
        ("speculation=draft", "can't be 'draft'"),
    ],
)
def test_axes_that_can_not_be(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_axis(text, BASE)
    assert "\n" not in str(error.value)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs flash attention"):
        settle(BASE, {"engine.flash_attention": "off", "engine.kv_type": "q8_0"})
    with pytest.raises(ConfigError, match="n_ubatch"):
        settle(BASE, {"engine.n_ubatch": 4096})


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("off", "off"),
        ("auto", "auto"),
        ("ngram", Speculation(drafter="ngram")),
        ("ngram:4", Speculation(drafter="ngram", depth=4)),
        ("auto:2", Speculation(depth=2)),
    ],
)
def test_words_for_speculation(word: str, found: object) -> None:
    profile = settle(BASE, {"speculation": word})
    assert profile.speculation == found
    assert current(profile, "speculation") == word


def test_some_axes_and_given_ones() -> None:
    known = (Axis("engine.kv_type", ("q8_0",)), Axis("engine.n_ubatch", (128,)), Axis("engine.threads", (1,)))
    given = [Axis("engine.n_ubatch", (64,)), Axis("cache.sequences", (8,))]
    assert [axis.key for axis in chosen(known, given)] == [
        "engine.kv_type", "engine.n_ubatch", "engine.threads", "cache.sequences",
    ]  # fmt: skip
    assert chosen(known, given[:1], ["threads"]) == (given[0], known[2])
    with pytest.raises(ConfigError, match=r"there are no values for engine\.mode here"):
        chosen(known, given, ["mode"])


def test_the_grid_has_all_combinations_but_the_default() -> None:
    axes = (Axis("a", (1,)), Axis("b", (2, 3)))
    assert list(grid(axes, {"a": 0, "b": 0})) == [{"b": 2}, {"b": 3}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}]


def test_labels() -> None:
    assert label({}) == "default"
    assert label({"engine.n_ubatch": 256, "speculation": "off"}) == "n_ubatch=256, speculation=off"


def test_a_presets_sizes_keep_no_value_from_being_tried() -> None:
    base = msgspec.structs.replace(BASE, presets={"long": Preset(8192, "q8_0", 100)})
    assert parse_axis("flash_attention=off", base).values == ("off",)
    assert settle(base, {"engine.n_ubatch": 64}).engine.n_ubatch == 64
