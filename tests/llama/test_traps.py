"""The traps of a recurrent state: each shown on the bare API, where the decode succeeds and the numbers are wrong, and
refused by `Context`, which allows the legal call beside it.

Distances between logits are judged by `NOISE` and `WRONG` of `drive.py`.
"""

import pytest

from forgelm.llama.context import Logits
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import assert_same, assert_wrong, feed, feed_all, ids, opened, refused, words
from tests.llama.raw import PARTIAL, Raw, Row, from_scratch, raw, rows

pytestmark = pytest.mark.model

ROLLBACK = 4


@pytest.fixture(scope="module")
def prompt(hybrid: Model) -> list[int]:
    return words(hybrid, 1, 200)


@pytest.fixture(scope="module")
def right(hybrid: Model) -> list[int]:
    """What follows the prompt."""
    return words(hybrid, 2, 20)


@pytest.fixture(scope="module")
def wrong(hybrid: Model) -> list[int]:
    """What was proposed after the prompt, and is rolled back."""
    return words(hybrid, 3, 20)


@pytest.fixture(scope="module")
def reference(hybrid: Model, prompt: list[int], right: list[int]) -> Logits:
    """After the prompt and what follows it, computed in one piece."""
    return from_scratch(hybrid.handle, prompt + right)


def verify(context: Raw, right: list[int], wrong: list[int], slot: int = 0) -> None:
    """Five rows after the prompt, of which the first two are right; all of them output rows, as in speculation."""
    assert context.decode([Row(slot, 200 + at, token, True) for at, token in enumerate(right[:2] + wrong[:3])]) == 0


def test_equal_computations_differ_by_noise_alone(
    hybrid: Model, prompt: list[int], right: list[int], reference: Logits
) -> None:
    """The measure of everything below: other chunks, other cells and other neighbours move logits by 0.03."""
    with raw(hybrid.handle) as context:
        context.run(5, right)
        context.run(0, prompt)
        for at, token in enumerate(right):
            logits = context.run(0, [token], 200 + at)
        assert_same(logits, reference)


# --- how far back ---


@pytest.mark.parametrize("length", [1, 2])
def test_rollback_beyond_the_last_ubatch_corrupts(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits, length: int
) -> None:
    """Four decodes of one row each; a rollback of three, within n_rs_seq, is answered with True."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        context.run(0, prompt)
        for at, token in enumerate(right[:length] + wrong[: 4 - length]):
            context.run(0, [token], 200 + at)
        assert context.cut(0, 200 + length)
        assert_wrong(context.run(0, right[length:], 200 + length), reference)


def test_rollback_beyond_the_last_ubatch_is_refused(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        for token in right[:1] + wrong[:3]:
            feed(context, 0, [token])
        with refused("only 0 rows"):
            context.trim(0, 201)
        context.trim(0, 0)
        assert_same(feed(context, 0, prompt + right), reference)


@pytest.mark.parametrize("rows_verified", [2, 3, 5])
def test_rollback_within_the_last_ubatch_is_right(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits, rows_verified: int
) -> None:
    """All but the first row of a decode can go, up to n_rs_seq; one more is refused, and so is a second time."""
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        feed(context, 0, right[:1] + wrong[: rows_verified - 1])
        with refused(f"only {rows_verified - 1} rows"):
            context.trim(0, 200)
        context.trim(0, 201)
        with refused("only 0 rows"):
            context.trim(0, 200)
        assert context.length(0) == 201
        assert_same(feed(context, 0, right[1:]), reference)


def test_rollback_of_all_rows_of_a_decode_corrupts(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """n_rs_seq = 4 and four rows: True, and the state is another text's."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        context.run(0, wrong * 5)
        context.cut(0, 0)
        context.run(0, prompt[:150])
        context.run(0, prompt[150:], 150)
        context.run(0, wrong[:4], 200)
        assert context.cut(0, 200)
        assert_wrong(context.run(0, right, 200), reference)


def test_rollback_of_more_rows_than_states_is_refused(hybrid: Model, prompt: list[int], wrong: list[int]) -> None:
    """A long last ubatch doesn't help beyond n_rs_seq; here llama.cpp says False itself."""
    with raw(hybrid.handle, n_rs_seq=2) as bare:
        bare.run(0, prompt)
        assert not bare.cut(0, 197)
    with opened(hybrid, rollback_rows=2) as context:
        feed(context, 0, prompt + wrong)
        with refused("only 2 rows"):
            context.trim(0, 217)
        context.trim(0, 218)


def test_without_saved_states_nothing_is_rolled_back(
    hybrid: Model, prompt: list[int], right: list[int], reference: Logits
) -> None:
    """n_rs_seq = 0: llama.cpp answers False and keeps all; the ledger refuses before asking."""
    with raw(hybrid.handle) as bare:
        bare.run(0, prompt)
        assert not bare.cut(0, 199)
        assert bare.last_position(0) == 199
    with opened(hybrid) as context:
        feed(context, 0, prompt)
        with refused("only 0 rows"):
            context.trim(0, 199)
        context.trim(0, 200)
        assert_same(feed(context, 0, right), reference)


# --- nothing between a verification and its rollback ---


def test_fork_right_after_a_rollback_corrupts(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """`seq_cp` drops the rollback: the copy goes on from the state with the wrong rows in it."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        context.run(0, prompt)
        verify(context, right, wrong)
        assert context.cut(0, 202)
        context.copy(0, 3)
        assert_wrong(context.run(3, right[2:], 202), reference)


def test_fork_right_after_a_rollback_is_refused(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        feed(context, 0, right[:2] + wrong[:3])
        context.trim(0, 202)
        with refused("rolled back and not decoded since"):
            context.fork(0, 3, 202)
        feed(context, 0, right[2:5])
        context.fork(0, 3, 205)
        assert_same(feed(context, 3, right[5:]), reference)
        assert_same(feed(context, 0, right[5:]), reference)


def test_save_right_after_a_rollback(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """llama.cpp at our commit follows the rollback when it saves; `Context` refuses, so that one way out is left."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as bare:
        bare.run(0, prompt)
        verify(bare, right, wrong)
        assert bare.cut(0, 202)
        state = bare.save(0, PARTIAL)
        bare.copy(0, 3, 0, 202)
        assert bare.restore(3, state, PARTIAL) == len(state)
        assert_same(bare.run(3, right[2:], 202), reference)
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        feed(context, 0, right[:2] + wrong[:3])
        context.trim(0, 202)
        with refused("rolled back and not decoded since"):
            context.save(0)
        feed(context, 0, right[2:5])
        checkpoint = context.save(0)
        feed(context, 0, wrong)
        context.fork(0, 3, 205)
        context.restore(3, checkpoint)
        assert_same(feed(context, 3, right[5:]), reference)


def test_a_settled_rollback_may_be_forked_saved_and_decoded(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """The state is read from where the rollback left it and written back: then there is nothing to lose."""
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        feed(context, 5, prompt[:90])
        feed(context, 0, right[:2] + wrong[:3])
        context.trim(0, 202)
        context.settle(0)
        context.fork(0, 3, 202)
        state = context.save(0)
        feed(context, 5, prompt[90:])
        context.fork(0, 4, 202)
        assert_same(feed(context, 3, right[2:]), reference)
        feed(context, 0, wrong)
        assert_same(feed(context, 4, right[2:]), reference)
        assert_same(feed(context, 5, right), reference)
        context.trim(3, 0)
        context.fork(4, 3, 202)
        context.restore(3, state)
        assert_same(feed(context, 3, right[2:]), reference)


def test_settling_what_was_not_rolled_back_changes_nothing(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        feed(context, 0, right[:2] + wrong[:3])
        context.settle(0)
        context.trim(0, 202)
        assert_same(feed(context, 0, right[2:]), reference)


def test_a_shorter_fork_right_after_a_rollback_takes_attention_alone(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """A checkpoint goes on top of it; the one that was rolled back is none the worse for it."""
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        checkpoint = context.save(0)
        feed(context, 0, right[:2] + wrong[:3])
        context.trim(0, 202)
        context.fork(0, 3, 200)
        context.restore(3, checkpoint)
        assert_same(feed(context, 3, right), reference)
        assert_same(feed(context, 0, right[2:]), reference)


def test_prefill_around_verified_rows_corrupts_their_rollback(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """One decode of [prefill 0][verify 1][prefill 2]: the rest of the prefill makes a second ubatch, which puts the
    cells of 0 and 2 side by side and moves that of 1 away from its older states."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        context.run(1, prompt)
        proposed = [Row(1, 200 + at, token, True) for at, token in enumerate(right[:2] + wrong[:3])]
        assert context.decode(rows(0, prompt[:60]), proposed, rows(2, prompt[60:120])) == 0
        assert context.cut(1, 202)
        assert_wrong(context.run(1, right[2:], 202), reference)


def test_rows_verified_beside_prefill_cannot_be_rolled_back(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    proposed = right[:2] + wrong[:3]
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 1, prompt)
        assert feed_all(context, {0: prompt[:60], 1: proposed, 2: prompt[60:120]}) is DecodeStatus.OK
        with refused("only 0 rows"):
            context.trim(1, 202)
        context.trim(1, 0)
        feed(context, 1, prompt)
        # The same number of rows for everyone is one ubatch.
        assert feed_all(context, {0: wrong[:5], 1: proposed, 2: wrong[5:10]}) is DecodeStatus.OK
        context.trim(1, 202)
        assert_same(feed(context, 1, right[2:]), reference)


def test_unequal_rows_verified_together_corrupt_a_rollback(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """Five rows of 1, three each of 0 and 2: the latter make a second ubatch, for which their cells are put side by
    side, and that of 1 is moved away from its older states."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        for slot in (0, 1, 2):
            context.run(slot, prompt if slot == 1 else prompt[slot:])
        proposed = [Row(1, 200 + at, token, True) for at, token in enumerate(right[:2] + wrong[:3])]
        assert context.decode(proposed, rows(0, wrong[:3], 200), rows(2, wrong[:3], 198)) == 0
        assert context.cut(1, 202)
        assert_wrong(context.run(1, right[2:], 202), reference)


def test_equal_rows_over_several_ubatches_cannot_be_rolled_back(hybrid: Model, prompt: list[int]) -> None:
    with opened(hybrid, rollback_rows=ROLLBACK, n_ubatch=64) as context:
        assert feed_all(context, {0: prompt[:33], 1: prompt[:33]}) is DecodeStatus.OK
        with refused("only 0 rows"):
            context.trim(0, 32)
        assert feed_all(context, {0: prompt[:32], 1: prompt[:32]}) is DecodeStatus.OK
        context.trim(0, 63)


def test_rows_of_a_slot_count_together(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """Verified rows are added one by one, since each wants its logits."""
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 0, prompt)
        for at, token in enumerate(right[:2] + wrong[:3]):
            assert context.add(0, ids([token]), 200 + at, logits=True) == at
        assert context.decode() is DecodeStatus.OK
        assert_same(context.logits(1), from_scratch(hybrid.handle, prompt + right[:2]))
        context.trim(0, 202)
        assert_same(feed(context, 0, right[2:]), reference)


def test_another_decode_before_the_rollback_corrupts(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """Verify 1, then decode 0 and 2, then roll 1 back: their ubatch moved its cell, the older states stayed behind."""
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        for slot in (0, 1, 2):
            context.run(slot, prompt if slot == 1 else prompt[slot:])
        verify(context, right, wrong, slot=1)
        assert context.decode(rows(0, wrong, 200), rows(2, wrong, 198)) == 0
        assert context.cut(1, 202)
        assert_wrong(context.run(1, right[2:], 202), reference)


def test_another_decode_before_the_rollback_is_refused(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    """After the rollback others may decode: llama.cpp then moves the state it was rolled back to."""
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        for slot in (0, 1, 2):
            feed(context, slot, prompt if slot == 1 else prompt[slot:])
        feed(context, 1, right[:2] + wrong[:3])
        feed_all(context, {0: wrong[:8], 2: wrong[:8]})
        with refused("only 0 rows"):
            context.trim(1, 202)
        context.trim(1, 0)
        feed(context, 1, prompt)
        feed(context, 1, right[:2] + wrong[:3])
        context.trim(1, 202)
        feed_all(context, {0: wrong[:8], 2: wrong[:8]})
        assert_same(feed(context, 1, right[2:]), reference)


def test_fork_before_the_rollback_corrupts_the_copy(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int]
) -> None:
    """The two share a recurrent cell; rolling one back and letting others decode rolls both back."""
    proposed = right[:2] + wrong[:3]
    with raw(hybrid.handle, n_rs_seq=ROLLBACK) as context:
        for slot in (0, 1, 2):
            context.run(slot, prompt if slot == 1 else prompt[slot:])
        verify(context, right, wrong, slot=1)
        context.copy(1, 3)
        assert context.cut(1, 202)
        assert context.decode(rows(0, wrong, 200), rows(2, wrong, 198)) == 0
        assert_wrong(context.run(3, right, 205), from_scratch(hybrid.handle, prompt + proposed + right))


def test_rollback_after_a_fork_is_refused(
    hybrid: Model, prompt: list[int], right: list[int], wrong: list[int], reference: Logits
) -> None:
    proposed = right[:2] + wrong[:3]
    with opened(hybrid, rollback_rows=ROLLBACK) as context:
        feed(context, 1, prompt)
        context.fork(1, 3, 200)
        feed(context, 1, proposed)
        context.trim(1, 202)
        assert_same(feed(context, 1, right[2:]), reference)
        assert_same(feed(context, 3, right), reference)
        feed(context, 1, wrong[:3])
        context.fork(1, 4, 223)
        with refused("only 0 rows"):
            context.trim(1, 222)
