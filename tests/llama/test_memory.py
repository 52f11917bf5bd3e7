"""Fork, save and restore through `Context`, and what follows is what one sequence computed from scratch says."""

import pytest

from forgelm.llama.context import Checkpoint, Context, NoRoom
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import (
    assert_greedy,
    assert_same,
    assert_wrong,
    feed,
    feed_all,
    greedy_on,
    ids,
    noise,
    opened,
    refused,
    words,
)
from tests.llama.raw import from_scratch, raw

pytestmark = pytest.mark.model

every_kind = pytest.mark.parametrize("name", ["starter", "gemma", "windowed", "hybrid"])


@pytest.fixture
def model(name: str, request: pytest.FixtureRequest) -> Model:
    loaded: Model = request.getfixturevalue(name)
    return loaded


def copy_prefix(context: Context, source: int, target: int, checkpoint: Checkpoint) -> None:
    """Make `target` the prefix that `checkpoint` was saved at, as a prefix cache does."""
    if checkpoint.partial:
        context.fork(source, target, checkpoint.length)
    context.restore(target, checkpoint)


@every_kind
def test_the_whole_cycle(model: Model) -> None:
    """Fork at a boundary, save, let the source go on, restore into another slot, continue all three."""
    prefix, first, second = words(model, 1, 48), words(model, 2, 6), words(model, 3, 5)
    with opened(model) as context:
        feed(context, 0, prefix)
        checkpoint = context.save(0)
        context.fork(0, 1, 48)
        mine = greedy_on(context, 0, feed(context, 0, first), 8)
        copied = greedy_on(context, 1, feed(context, 1, second), 8)
        copy_prefix(context, 0, 5, checkpoint)
        restored = greedy_on(context, 5, feed(context, 5, second), 8)
    assert_greedy(model, prefix + first, mine)
    assert_greedy(model, prefix + second, copied)
    assert_greedy(model, prefix + second, restored)


@every_kind
def test_the_copy_outlives_its_source(model: Model) -> None:
    """Cells are shared; wiping or refilling the source takes nothing from the copy."""
    prefix, more = words(model, 1, 40), words(model, 2, 6)
    with opened(model) as context:
        feed(context, 0, prefix)
        context.fork(0, 1, 40)
        context.trim(0, 0)
        feed(context, 0, more + more)
        assert_same(feed(context, 1, more), from_scratch(model.handle, prefix + more), noise(model))
        assert context.length(0) == 12
        assert context.length(1) == 46


@every_kind
def test_many_copies_decode_together(model: Model) -> None:
    prefix = words(model, 1, 40)
    parts = {slot: words(model, slot + 10, 4) for slot in range(4)}
    with opened(model) as context:
        feed(context, 0, prefix)
        for slot in (1, 2, 3):
            context.fork(0, slot, 40)
        rows = {slot: context.add(slot, ids(part), 40, logits=True) for slot, part in parts.items()}
        assert context.decode() is DecodeStatus.OK
        for slot, part in parts.items():
            assert_same(context.logits(rows[slot]), from_scratch(model.handle, prefix + part), noise(model))


@pytest.mark.parametrize("name", ["starter", "gemma", "windowed"])
def test_attention_forks_and_trims_anywhere(model: Model) -> None:
    prefix, more = words(model, 1, 48), words(model, 2, 6)
    with opened(model) as context:
        feed(context, 0, prefix)
        context.fork(0, 1, 17)
        context.trim(0, 33)
        assert_same(feed(context, 1, more), from_scratch(model.handle, prefix[:17] + more), noise(model))
        assert_same(feed(context, 0, more), from_scratch(model.handle, prefix[:33] + more), noise(model))


# --- a fork from the middle of a recurrent sequence ---


def test_a_fork_without_its_state_corrupts(hybrid: Model) -> None:
    """The copy gets the attention cells asked for, and the state of the source's end."""
    prefix, more = words(hybrid, 1, 200), words(hybrid, 2, 20)
    with raw(hybrid.handle) as context:
        context.run(0, prefix + words(hybrid, 3, 20))
        context.copy(0, 1, 0, 200)
        assert_wrong(context.run(1, more, 200), from_scratch(hybrid.handle, prefix + more))


def test_a_fork_without_its_state_waits_for_it(hybrid: Model) -> None:
    prefix, more = words(hybrid, 1, 200), words(hybrid, 2, 20)
    with opened(hybrid) as context:
        feed(context, 0, prefix)
        checkpoint = context.save(0)
        feed(context, 0, words(hybrid, 3, 20))
        context.fork(0, 1, 200)
        for misuse in (
            lambda: feed(context, 1, more),
            lambda: context.save(1),
            lambda: context.fork(1, 2, 200),
        ):
            with refused("no recurrent state"):
                misuse()
        with refused("only 0 rows"):
            context.trim(1, 199)
        context.restore(1, checkpoint)
        assert_same(feed(context, 1, more), from_scratch(hybrid.handle, prefix + more))


def test_a_checkpoint_goes_where_its_length_is(hybrid: Model) -> None:
    """Into a slot forked to exactly its length: not an empty one, a longer one or a whole one."""
    prefix, more = words(hybrid, 1, 60), words(hybrid, 2, 6)
    with opened(hybrid) as context:
        feed(context, 0, prefix[:40])
        checkpoint = context.save(0)
        feed(context, 0, prefix[40:])
        context.fork(0, 1, 41)
        context.fork(0, 2, 60)
        for slot in (0, 1, 2, 3):
            with refused("isn't ready for a checkpoint of 40 tokens"):
                context.restore(slot, checkpoint)
        context.trim(1, 0)
        context.fork(0, 1, 40)
        context.restore(1, checkpoint)
        with refused("isn't ready"):
            context.restore(1, checkpoint)
        assert_same(feed(context, 1, more), from_scratch(hybrid.handle, prefix[:40] + more))


def test_checkpoints_are_many_and_keep(hybrid: Model) -> None:
    """Host blobs, not llama.cpp's one device slot per sequence: an older one still holds the older state, and in a
    context of its own kind it can be used again and again."""
    prefix, more = words(hybrid, 1, 60), words(hybrid, 2, 6)
    with opened(hybrid) as context:
        checkpoints = []
        for start in (0, 20, 40):
            feed(context, 0, prefix[start : start + 20])
            checkpoints.append(context.save(0))
        for slot, checkpoint in enumerate([*checkpoints, *checkpoints], start=1):
            context.fork(0, slot, checkpoint.length)
            if context.length(slot) < 60:
                context.restore(slot, checkpoint)
            reference = from_scratch(hybrid.handle, prefix[: checkpoint.length] + more)
            assert_same(feed(context, slot, more), reference)


# --- what is refused on any model, and data that isn't a checkpoint ---


@every_kind
def test_forks_that_make_no_sense(model: Model) -> None:
    text = words(model, 1, 20)
    with opened(model) as context:
        feed(context, 0, text)
        feed(context, 1, text)
        for target in (0, 1):
            with refused(f"slot {target} isn't empty"):
                context.fork(0, target, 20)
        for length in (-1, 0, 21):
            with refused(f"holds 20 tokens, not {length}"):
                context.fork(0, 2, length)
        with refused("holds 0 tokens"):
            context.fork(3, 2, 1)
        with refused("nothing to save"):
            context.save(3)


@every_kind
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: 0 * data[:16]])
def test_damaged_checkpoints_leave_an_empty_slot(model: Model, damage: object) -> None:
    text, more = words(model, 1, 20), words(model, 2, 4)
    assert callable(damage)
    with opened(model) as context:
        feed(context, 0, text)
        saved = context.save(0)
        feed(context, 0, more)
        damaged = Checkpoint(saved.length, saved.partial, damage(saved.data))
        with pytest.raises(NoRoom, match="rejected a checkpoint"):
            copy_prefix(context, 0, 1, damaged)
        assert context.length(1) == 0
        copy_prefix(context, 0, 1, saved)
        assert_same(feed(context, 1, more), from_scratch(model.handle, text + more), noise(model))
        assert_same(feed(context, 0, more), from_scratch(model.handle, text + more + more), noise(model))


@every_kind
def test_no_room_leaves_memory_as_it_was(model: Model) -> None:
    """The pool of 256 cells is full: code 1, nobody loses a token, and what is freed can be used."""
    texts = {slot: words(model, slot, 80) for slot in (0, 1, 2)}
    more = words(model, 9, 6)
    with opened(model, n_ctx=256, n_batch=256, n_ubatch=64) as context:
        for slot, text in texts.items():
            feed(context, slot, text)
        assert feed_all(context, {1: more, 3: words(model, 8, 40)}) is DecodeStatus.NO_ROOM
        assert [context.length(slot) for slot in range(4)] == [80, 80, 80, 0]
        with refused("holds 80 tokens"):
            context.add(1, ids(more), 86, logits=True)
        answer = greedy_on(context, 1, feed(context, 1, more), 6)
        context.trim(2, 0)
        assert feed_all(context, {3: words(model, 8, 40)}) is DecodeStatus.OK
        assert_same(feed(context, 0, more), from_scratch(model.handle, texts[0] + more), noise(model))
    assert_greedy(model, texts[1] + more, answer)


@every_kind
def test_a_whole_state_needs_nothing_beside_it(model: Model) -> None:
    """Saved, its slot wiped and used by another, loaded into a third: a hybrid's attention cells come along."""
    text, more = words(model, 1, 30), words(model, 2, 4)
    with opened(model) as context:
        feed(context, 0, text)
        saved = context.save(0, whole=True)
        assert not saved.partial
        context.trim(0, 0)
        feed(context, 0, words(model, 3, 50))
        context.restore(2, saved)
        assert context.length(2) == 30
        assert_same(feed(context, 2, more), from_scratch(model.handle, text + more), noise(model))


@every_kind
def test_a_state_that_finds_no_room_leaves_others_alone(model: Model) -> None:
    texts, more = {slot: words(model, slot, 80) for slot in (0, 1, 2)}, words(model, 9, 5)
    with opened(model, n_ctx=256, n_batch=256, n_ubatch=64) as context:
        feed(context, 0, texts[0])
        saved = context.save(0, whole=True)
        feed(context, 1, texts[1])
        feed(context, 2, texts[2])
        with pytest.raises(NoRoom):
            context.restore(3, saved)
        assert [context.length(slot) for slot in range(4)] == [80, 80, 80, 0]
        assert_same(feed(context, 1, more), from_scratch(model.handle, texts[1] + more), noise(model))
        context.trim(0, 0)
        context.restore(3, saved)
        assert_same(feed(context, 3, more), from_scratch(model.handle, texts[0] + more), noise(model))


@every_kind
def test_slots_with_cells_of_their_own_cant_be_forked(model: Model) -> None:
    text, more = words(model, 1, 20), words(model, 2, 4)
    with opened(model, unified=False) as context:
        feed(context, 0, text)
        with refused("cells of their own"):
            context.fork(0, 1, 20)
        assert context.n_ctx_seq < context.n_ctx
        assert_same(feed(context, 0, more), from_scratch(model.handle, text + more), noise(model))
