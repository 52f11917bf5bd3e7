"""The ladder: every rung makes something smaller, and what comes out fits, or nothing would."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgelm.config import KV_TYPES, Cache, Engine
from forgelm.fit.budget import Budget
from forgelm.fit.ladder import RUNGS, SHORTEST, Ladder, Setting, on_gpu
from forgelm.fit.shapes import Shape
from tests.fit.shapes import DENSE, GIB, MIB, QWEN_4B, QWEN_9B, SHAPES, budget, setting

PRECISION = {"f16": 2, "bf16": 2, "q8_0": 1, "q4_0": 0}
KEYS = sorted({key for key, _ in RUNGS})

wanted_settings = st.builds(
    Setting,
    engine=st.builds(
        Engine,
        context=st.integers(256, 300_000),
        parallel=st.integers(1, 200),
        kv_type=st.sampled_from(KV_TYPES),
        n_gpu_layers=st.integers(-1, 40),
        n_ubatch=st.sampled_from([256, 512]),
        flash_attention=st.just("on"),
    ),
    cache=st.builds(Cache, sequences=st.integers(0, 30), prefix_cache=st.booleans()),
)
budgets = st.builds(budget, st.one_of(st.none(), st.floats(0.0, 24.0)), st.floats(0.0, 32.0))
shapes = st.sampled_from(list(SHAPES.values()))
pins = st.sets(st.sampled_from(KEYS)).map(frozenset)


def value(of: Setting, key: str) -> int | str:
    section, name = key.split(".")
    found: int | str = getattr(getattr(of, section), name)
    return found


def ids(shape: Shape, of: Setting) -> int:
    parallel = of.engine.parallel
    return parallel + of.cache.kept_sequences(parallel, recurrent=shape.recurrent)


def assert_no_larger(shape: Shape, after: Setting, before: Setting) -> None:
    old, new = before.engine, after.engine
    assert new.context <= old.context
    assert new.parallel <= old.parallel
    assert PRECISION[new.kv_type] <= PRECISION[old.kv_type]
    assert on_gpu(shape, after) <= on_gpu(shape, before)
    assert ids(shape, after) <= ids(shape, before)


@settings(max_examples=300, deadline=None)
@given(shape=shapes, room=budgets, wanted=wanted_settings, pinned=pins)
def test_it_never_steps_up_and_touches_nothing_pinned(
    shape: Shape, room: Budget, wanted: Setting, pinned: frozenset[str]
) -> None:
    ladder = Ladder(shape, room)
    found = ladder.descend(wanted, pinned)
    assert_no_larger(shape, found.setting, wanted)
    assert found.fits == room.holds(found.need)
    assert found.need == ladder.need(found.setting)
    assert (found.setting == wanted) == (not found.steps)
    for key in pinned:
        assert value(found.setting, key) == value(wanted, key)
    if ladder.holds(wanted):
        assert found.setting == wanted


@settings(max_examples=200, deadline=None)
@given(shape=shapes, room=budgets, wanted=wanted_settings)
def test_every_rung_alone_goes_down(shape: Shape, room: Budget, wanted: Setting) -> None:
    ladder = Ladder(shape, room)
    for _, rung in RUNGS:
        after = rung(ladder, wanted)
        assert_no_larger(shape, after, wanted)
        # A layer that leaves the GPU is in RAM; nothing else may take more of either.
        if on_gpu(shape, after) == on_gpu(shape, wanted):
            assert lasting(ladder, after) <= lasting(ladder, wanted)


def lasting(ladder: Ladder, of: Setting) -> int:
    """All but the compute buffers, whose rows are rounded up to a multiple of the sequences: fewer can take more."""
    return sum(part.gpu + part.host for part in ladder.need(of).parts if part.name != "compute buffers")


@settings(max_examples=150, deadline=None)
@given(shape=shapes, room=budgets, wanted=wanted_settings)
def test_a_refusal_is_right(shape: Shape, room: Budget, wanted: Setting) -> None:
    """Where the ladder gives up, no setting of its kind fits: the lowest one with any number of layers doesn't."""
    ladder = Ladder(shape, room)
    found = ladder.descend(wanted)
    if found.fits:
        return
    lowest = found.setting.engine
    assert (lowest.context, lowest.parallel) == (min(SHORTEST, wanted.engine.context), 1)
    for layers in range(1, on_gpu(shape, wanted) + 1) if room.cards else (0,):
        engine = msgspec.structs.replace(lowest, n_gpu_layers=layers)
        assert not ladder.holds(Setting(engine, found.setting.cache))


@settings(max_examples=100, deadline=None)
@given(shape=shapes, wanted=wanted_settings, free=st.floats(0.5, 20.0), more=st.floats(0.1, 10.0))
def test_a_larger_card_gives_up_no_more(shape: Shape, wanted: Setting, free: float, more: float) -> None:
    small, large = (Ladder(shape, budget(size)).descend(wanted) for size in (free, free + more))
    if small.fits:
        assert large.fits
        assert len(large.steps) <= len(small.steps)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, room=budgets, wanted=wanted_settings)
def test_the_longest_context_fits_and_a_longer_one_does_not(shape: Shape, room: Budget, wanted: Setting) -> None:
    ladder = Ladder(shape, room)
    longest = ladder.largest_context(wanted)
    most = shape.context_train * wanted.engine.parallel

    def holds(context: int) -> bool:
        return ladder.holds(Setting(msgspec.structs.replace(wanted.engine, context=context), wanted.cache))

    assert longest == 0 or holds(longest)
    assert longest + 1024 > most or not holds(longest + 1024)


# --- the order --------------------------------------------------------------------------------------------------------


def test_what_fits_stays_as_it_is() -> None:
    found = Ladder(QWEN_4B, budget(7.5)).descend(setting())
    assert (found.fits, found.steps) == (True, ())


def test_a_little_too_much_costs_kept_sequences_before_context() -> None:
    wanted = setting(kv_type="q8_0")
    ladder = Ladder(QWEN_4B, budget(4.85))
    assert not ladder.holds(wanted)
    assert ladder.descend(wanted).steps == ("kept sequences 4 → 2",)


def test_f16_becomes_q8_0_first() -> None:
    assert Ladder(QWEN_4B, budget(5.3)).descend(setting(kv_type="f16")).steps == ("KV type f16 → q8_0",)


def test_then_the_context_shrinks_as_little_as_need_be() -> None:
    ladder = Ladder(QWEN_4B, budget(4.4))
    found = ladder.descend(setting())
    assert [step.split()[0] for step in found.steps] == ["context", "kept"]
    context = found.setting.engine.context
    assert 32_768 < context < 65_536
    longer = msgspec.structs.replace(found.setting.engine, context=context + 1024)
    assert not ladder.holds(Setting(longer, found.setting.cache))


def test_a_context_beyond_the_model_is_the_first_to_go() -> None:
    """Requests at once aren't given up for cells that no request can use."""
    found = Ladder(DENSE, budget(None, 16.0)).descend(setting(context=10**9, parallel=4))
    assert found.fits
    assert found.setting.engine.parallel == 4
    assert found.setting.engine.context < 10**6


def test_layers_leave_the_gpu_last() -> None:
    found = Ladder(QWEN_9B, budget(4.0)).descend(setting("balanced_9b"))
    assert found.fits
    assert found.setting.engine.context == SHORTEST
    assert found.steps[-1].startswith("layers on the GPU 34 → ")


def test_without_flash_attention_the_cache_stays_f16() -> None:
    wanted = setting(kv_type="f16", flash_attention="off")
    for free in (2.0, 3.0, 4.0):
        assert Ladder(QWEN_4B, budget(free)).descend(wanted).setting.engine.kv_type == "f16"


def test_one_attention_layer_gains_nothing_from_8_bits_on_a_gpu() -> None:
    """Reading them takes an f16 copy of that layer, which is all that there is."""
    single = msgspec.structs.replace(DENSE, layers=DENSE.layers[:1])
    wanted = setting(kv_type="f16", context=200_000)
    small = Ladder(single, budget(1.5))
    assert not small.holds(wanted)
    assert small.descend(wanted, frozenset({"engine.context"})).setting.engine.kv_type == "f16"
    assert Ladder(single, budget(None, 1.0)).descend(wanted).setting.engine.kv_type != "f16"


def test_a_machine_without_cards_moves_no_layers() -> None:
    found = Ladder(QWEN_4B, budget(None, 2.0)).descend(setting())
    assert not found.fits
    assert found.setting.engine.n_gpu_layers == -1


@pytest.mark.parametrize("kept", [0, 6])
def test_pinned_kept_sequences(kept: int) -> None:
    wanted = msgspec.structs.replace(setting(), cache=Cache(sequences=kept))
    found = Ladder(QWEN_4B, budget(4.5)).descend(wanted, frozenset({"cache.sequences"}))
    assert found.setting.cache.sequences == kept
    assert found.fits


def test_the_largest_context_is_bounded_by_the_model() -> None:
    ladder = Ladder(QWEN_4B, budget(80.0))
    assert ladder.largest_context(setting(parallel=1)) == 262_144
    assert Ladder(QWEN_4B, budget(1.0)).largest_context(setting()) == 0
    assert Ladder(QWEN_4B, budget(7.5)).budget.gpu_excess(ladder.need(setting())) < -2 * GIB + 200 * MIB
