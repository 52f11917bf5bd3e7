"""Decodes that don't succeed, at each stage: who gives way, who starts over, who ends, and when the engine gives up."""

import pytest

from forgelm.engine.plan import Decode, Trim
from forgelm.engine.scheduler import MAX_FAILED_STEPS, MAX_FAILURES, BackendBroken
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness

OK, NO_ROOM, INVALID = DecodeStatus.OK, DecodeStatus.NO_ROOM, DecodeStatus.INVALID
ABORTED, FAILED = DecodeStatus.ABORTED, DecodeStatus.FAILED
TAINTING = [ABORTED, FAILED]


def busy(*, split: bool = False) -> Harness:
    """Two who decode and one whose prompt is half read."""
    harness = Harness(cells=2048, n_ubatch=64, split=split)
    harness.add(1, 10, max_tokens=60)
    harness.add(2, 10, max_tokens=60)
    harness.until(2, 4)
    harness.add(3, 400, max_tokens=5)
    harness.step()
    return harness


# --- a cell short ---


def test_the_youngest_gives_way_when_decoders_fill_the_cells_and_loses_no_token() -> None:
    harness = Harness(cells=128)
    for request_id in range(1, 4):
        harness.add(request_id, 20, max_tokens=80)
    harness.run()
    harness.check_answers()
    preemptions = {i: delta.timings.preemptions for i, delta in harness.ended.items() if delta.timings}
    assert preemptions[1] == 0
    assert preemptions[3] > 0


def test_the_one_that_gave_way_comes_before_those_who_never_started() -> None:
    harness = Harness(cells=128)
    for request_id in range(1, 4):
        harness.add(request_id, 20, max_tokens=80)
    harness.step()
    harness.add(4, 90, max_tokens=2)
    while len(harness.scheduler._queue) == 1:
        harness.step()
    assert [s.request.id for s in harness.scheduler._queue] == [3, 4]
    harness.run()
    harness.check_answers()
    assert list(harness.ended)[-1] == 4


def test_several_that_give_way_keep_their_order() -> None:
    harness = busy()
    harness.step(FAILED)
    assert [s.request.id for s in harness.scheduler._queue] == [1, 2, 3]


def test_prompts_half_read_and_decoders_that_grow_into_their_cells_dont_block_each_other() -> None:
    """Admitted while everything fits; then the decoders take the cells that the prompts still need."""
    harness = Harness(cells=400, slots=4, n_ubatch=32, row=0.01, step=0.05)
    harness.add(1, 10, max_tokens=300)
    harness.add(2, 10, max_tokens=300)
    harness.until(2, 2)
    harness.add(3, 150)
    harness.add(4, 180)
    harness.run()
    harness.check_answers()


def test_a_prompt_is_cut_to_the_cells_that_growing_decoders_leave() -> None:
    """Nine steps of 16 rows read it; by then three decoders have grown by 27 tokens, and the headroom was 16."""
    harness = Harness(cells=256, slots=6, n_ubatch=64, row=0.1)
    for request_id in range(1, 4):
        harness.add(request_id, 30, max_tokens=60)
    harness.until(3, 1)
    harness.add(4, 140)
    chunks = []
    while not harness.ended:
        harness.step()
        chunks.append(harness.plans[-1].prefill_rows)
    assert any(0 < rows < 16 for rows in chunks)
    harness.run()
    harness.check_answers()


def test_two_prompts_share_the_cells_that_growing_decoders_leave() -> None:
    """The second's chunk counts the first's: the harness would see a plan of more rows than cells."""
    for size, boundary in [(10, 1), (19, 2), (28, 3), (37, 4), (55, 6), (67, 8)]:
        harness = Harness(cells=256, slots=6, n_ubatch=64, row=0.1)
        for request_id in range(1, 4):
            harness.add(request_id, 30, max_tokens=60)
        harness.until(3, 1)
        harness.add(4, size, boundaries=tuple(range(boundary, size, boundary)))
        harness.add(5, 137 - size)
        harness.run()
        harness.check_answers()


def test_no_room_makes_the_youngest_give_way_and_the_others_go_on() -> None:
    harness = busy()
    assert not harness.step(NO_ROOM)
    assert [s.request.id for s in harness.scheduler._queue] == [3]
    assert {delta.id for delta in harness.step()} == {1, 2}
    harness.run()
    harness.check_answers()
    assert not any(delta.error for delta in harness.ended.values())


def test_after_no_room_nobody_is_admitted_until_a_step_succeeds() -> None:
    """The one that gave way fits by our count, or the step wouldn't have been planned: admitted again at once, it would
    meet the same answer, three times, and end with an error although it could have waited.
    """
    harness = busy()
    for _ in range(4):
        harness.step(NO_ROOM)
        harness.step(OK)
    harness.run()
    harness.check_answers()
    assert not any(delta.error for delta in harness.ended.values())


@pytest.mark.parametrize("split", [False, True])
def test_a_pool_smaller_than_we_were_told_slows_requests_down_but_fails_only_those_that_can_never_fit(
    split: bool,
) -> None:
    harness = Harness(cells=600, slots=4, n_ubatch=64, room=300, split=split)
    for request_id, (prompt, answer) in enumerate([(150, 40), (200, 10), (20, 100), (450, 10), (100, 50), (280, 10)]):
        harness.add(request_id, prompt, max_tokens=answer)
    harness.run()
    harness.check_answers()
    assert {i for i, delta in harness.ended.items() if delta.finish == "error"} == {3}


def test_a_prompt_that_never_fits_ends_although_its_first_chunks_do() -> None:
    """Its failures were forgotten whenever a chunk succeeded, so it was read from the start for ever."""
    harness = Harness(cells=1000, n_ubatch=64, room=200)
    harness.add(1, 500)
    harness.run(limit=50)
    assert harness.ended[1].finish == "error"
    assert "no_room" in harness.ended[1].error


# --- tainted memory ---


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("status", TAINTING)
def test_a_tainted_batch_is_wiped_and_computed_again_to_the_same_tokens(status: DecodeStatus, split: bool) -> None:
    harness = busy(split=split)
    harness.step(status)
    harness.run()
    harness.check_answers()
    assert not any(delta.error for delta in harness.ended.values())


@pytest.mark.parametrize("stage", range(12))
@pytest.mark.parametrize("status", [NO_ROOM, *TAINTING])
def test_one_failure_at_any_step_changes_no_answer(status: DecodeStatus, stage: int) -> None:
    harness = Harness(cells=512, n_ubatch=64)
    for request_id in range(5):
        harness.add(request_id, 10 + 60 * request_id, max_tokens=6)
    for _ in range(stage):
        harness.step()
    harness.step(status)
    harness.run()
    harness.check_answers()
    assert not any(delta.error for delta in harness.ended.values())


def test_a_batch_that_failed_is_wiped_before_anything_is_decoded() -> None:
    harness = busy()
    slots = {span.slot for span in harness.spans(harness.plans[-1])}
    harness.step(FAILED)
    harness.step()
    operations = harness.plans[-1].operations
    wiped = {op.slot for op in operations if isinstance(op, Trim)}
    assert wiped == slots
    assert isinstance(operations[-1], Decode)


@pytest.mark.parametrize("split", [False, True])
def test_a_request_that_breaks_its_steps_ends_and_its_neighbours_dont(split: bool) -> None:
    """They failed together and were tried again together: whoever shared three batches with it ended with it."""
    harness = Harness(cells=2048, slots=5, n_ubatch=64, split=split)
    for request_id in range(1, 5):
        harness.add(request_id, 300 if request_id == 4 else 20, max_tokens=40)
    harness.until(1, 3)
    harness.poison = {9}
    harness.add(9, 30)
    harness.run()
    harness.check_answers()
    assert {i for i, delta in harness.ended.items() if delta.finish == "error"} == {9}


@pytest.mark.parametrize("status", TAINTING)
def test_a_request_that_keeps_failing_ends_with_an_error(status: DecodeStatus) -> None:
    harness = Harness()
    harness.add(1, 10)
    for _ in range(MAX_FAILURES):
        assert 1 not in harness.ended
        harness.step(status)
    assert harness.ended[1].finish == "error"
    assert status.value in harness.ended[1].error
    harness.run()


def test_a_prompt_whose_third_chunk_always_fails_ends() -> None:
    """A compute buffer that can't be had at some depth of context fails there every time."""
    harness = Harness(cells=1000, n_ubatch=64)
    harness.add(1, 400)
    for _ in range(60):
        if not harness.scheduler.has_work:
            break
        deep = harness.memory.ledger.used >= 128
        harness.step(FAILED if deep else OK)
    assert harness.ended[1].finish == "error"


def test_failures_long_ago_are_forgotten() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=100)
    for round_ in range(8):
        harness.step(FAILED)
        harness.until(1, round_ + 1)
    harness.run()
    harness.check_answers()
    assert harness.ended[1].finish == "length"


# --- our own mistakes ---


def test_an_invalid_batch_ends_its_sequences_and_nobody_elses() -> None:
    harness = busy()
    harness.add(4, 5)
    harness.step(INVALID)
    assert {i for i, delta in harness.ended.items() if delta.finish == "error"} >= {1, 2, 3}
    harness.add(5, 10)
    harness.run()
    harness.check_answers()
    assert harness.ended[5].finish == "length"


# --- split plans ---


@pytest.mark.parametrize("status", [NO_ROOM, *TAINTING])
def test_split_when_the_decode_rows_fail_the_prefill_rows_arent_run(status: DecodeStatus) -> None:
    harness = busy(split=True)
    computed = harness.memory.ledger.used
    assert len(harness.plans[-1].decodes) == 2
    harness.step(status)
    assert len(harness.plans[-1].decodes) == 2
    assert harness.memory.ledger.used < computed
    prefilled = harness.scheduler._by_id[3][0]
    assert prefilled.failures == 0
    harness.run()
    harness.check_answers()
    assert not any(delta.error for delta in harness.ended.values())


@pytest.mark.parametrize("status", [NO_ROOM, INVALID, *TAINTING])
def test_split_when_the_prefill_rows_fail_the_decoders_keep_their_tokens(status: DecodeStatus) -> None:
    harness = busy(split=True)
    had = len(harness.tokens[1])
    harness.step(OK, status)
    assert len(harness.tokens[1]) == had + 1
    assert (3 in harness.ended) == (status is INVALID)
    harness.run()
    harness.check_answers()


def test_split_an_invalid_decode_leaves_the_prompts_alone() -> None:
    harness = busy(split=True)
    harness.step(INVALID)
    assert harness.ended.keys() == {1, 2}
    harness.run()
    harness.check_answers()
    assert harness.ended[3].finish == "length"


# --- giving up ---


def test_a_backend_that_fails_step_after_step_is_broken() -> None:
    harness = busy()
    with pytest.raises(BackendBroken, match=str(MAX_FAILED_STEPS)):  # noqa: PT012
        for _ in range(MAX_FAILED_STEPS):
            harness.step(FAILED)


def test_a_backend_that_fails_one_lone_client_after_another_is_broken_too() -> None:
    """Each request ended after three failures, the step that wiped its slot counted as a success, and the engine would
    have failed everybody for ever without anyone restarting it.
    """
    harness = Harness()
    with pytest.raises(BackendBroken):  # noqa: PT012
        for request_id in range(10):
            harness.add(request_id, 10)
            while harness.scheduler.has_work:
                harness.step(FAILED)
    assert request_id == 1


def test_steps_that_succeed_in_between_prove_the_backend_alive() -> None:
    harness = Harness(cells=2048, n_ubatch=64)
    harness.add(1, 10, max_tokens=200)
    for _ in range(MAX_FAILED_STEPS):
        harness.step(FAILED)
        harness.step()
    harness.run()
    harness.check_answers()
