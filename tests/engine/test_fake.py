"""The fake backend must be as strict as the real one: what would corrupt a sequence raises."""

import os
import signal

import msgspec
import numpy as np
import pytest

from forgelm.engine.fake import FIRST_TOKEN, VARIETY, FakeBackend, FakeSettings, fake_token
from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import Decode, Draw, Drawn, Fork, Plan, Restore, Save, Span, Trim
from forgelm.ipc.messages import Sampling
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness, generate


def fake(**settings) -> FakeBackend:
    return FakeBackend(FakeSettings(**{"context": 100, "slots": 3} | settings), sleep=lambda _: None)


def span(slot: int, tokens: list[int], start: int = 0, *, draw: bool = False) -> Span:
    """Of a sequence whose tokens before `start` are 1, 2, …"""
    known = np.array([*range(1, start + 1), *tokens], np.int32)
    return Span(slot, known[start:], start, Draw(Sampling(), 0, 0, known) if draw else None)


def decode(*spans: Span) -> Plan:
    return Plan((Decode(spans),), prefill_rows=sum(len(each.tokens) for each in spans))


def test_the_token_depends_on_the_history_alone_however_it_was_cut_and_whatever_ran_beside() -> None:
    whole, pieces = fake(), fake()
    [first] = whole.run(decode(span(0, [1, 2, 3, 4], draw=True))).results
    pieces.run(decode(span(2, [1, 2])))
    [second] = pieces.run(decode(span(1, [9], draw=True), span(2, [3, 4], 2, draw=True))).results
    assert first.drawn[0] == second.drawn[1] == (Drawn(fake_token([1, 2, 3, 4])),)


def test_tokens_are_words_of_the_vocabulary_and_vary() -> None:
    tokens = {fake_token(list(range(length))) for length in range(1, 400)}
    assert all(FIRST_TOKEN <= token < FIRST_TOKEN + VARIETY == fake().facts.vocabulary for token in tokens)
    assert len(tokens) > 200


def test_nothing_is_drawn_where_nothing_was_asked() -> None:
    [result] = fake().run(decode(span(0, [1, 2]), span(1, [3], draw=True))).results
    assert [len(drawn) for drawn in result.drawn] == [0, 1]
    assert result.kept == (2, 1)


@pytest.mark.parametrize(
    "operations",
    [
        (Decode((span(0, [1], 1),)),),
        (Decode((span(0, [1, 2]),)), Decode((span(0, [3], 1),))),
        (Decode((span(0, [1, 2]),)), Decode((span(0, [3], 3),))),
        (Trim(0, 1),),
        (Decode((span(0, [1]),)), Fork(0, 1, 2)),
        (Decode((span(0, [1]), span(1, [2]))), Fork(0, 1, 1)),
    ],
    ids=["gap at the start", "overlap", "gap", "trim beyond", "fork beyond", "fork onto something"],
)
def test_a_plan_that_would_corrupt_memory_raises(operations: tuple) -> None:
    with pytest.raises(AssertionError, match="broke memory"):
        fake().run(Plan(operations))


def test_memory_operations_do_what_they_say_in_their_order() -> None:
    backend = fake()
    backend.run(
        Plan(
            (
                Decode((span(0, [1, 2, 3]),)),
                Fork(0, 1, 2),
                Save(0, 7),
                Trim(0),
                Restore(2, 7),
                Trim(2, 1),
                Decode((span(0, [9]), span(1, [8], 2))),
            )
        )
    )
    assert backend.memory == [[9], [1, 2, 8], [1]]


def test_more_than_the_context_is_no_room_and_changes_nothing() -> None:
    backend = fake(context=5)
    backend.run(decode(span(0, [1, 2, 3])))
    [result] = backend.run(decode(span(1, [1, 2, 3], draw=True))).results
    assert (result.status, result.drawn) == (DecodeStatus.NO_ROOM, ((),))
    assert backend.memory == [[1, 2, 3], [], []]
    assert backend.run(decode(span(1, [1, 2]))).results[0].status is DecodeStatus.OK


@pytest.mark.parametrize("status", [DecodeStatus.ABORTED, DecodeStatus.FAILED])
def test_a_failed_decode_leaves_slots_that_only_a_wipe_makes_usable(status: DecodeStatus) -> None:
    backend = fake()
    backend.run(decode(span(0, [1, 2]), span(2, [5])))
    backend.statuses = [status]
    assert backend.run(decode(span(0, [3], 2))).results[0].status is status
    with pytest.raises(AssertionError):
        backend.run(decode(span(0, [3], 2)))
    backend.run(Plan((Trim(0), Decode((span(0, [1]), span(2, [6], 1))))))
    assert backend.memory == [[1], [], [5, 6]]


def test_after_a_decode_that_failed_other_operations_still_happen_but_no_decode() -> None:
    backend = fake()
    backend.statuses = [DecodeStatus.NO_ROOM]
    plan = Plan((Decode((span(0, [1]),)), Decode((span(1, [1]),)), Trim(0)))
    assert [result.status for result in backend.run(plan).results] == [DecodeStatus.NO_ROOM]
    assert backend.memory == [[], [], []]


def test_time_is_a_part_per_step_and_a_part_per_prefill_row() -> None:
    slept: list[float] = []
    backend = FakeBackend(FakeSettings(step=0.5, row=0.25, load=2.0), sleep=slept.append)
    outcome = backend.run(decode(span(0, [1, 2, 3])))
    assert slept == [2.0, 1.25]
    assert outcome.seconds == 1.25
    assert backend.run(Plan((Trim(0),))).seconds == 0
    assert backend.steps == 1


def test_a_fake_that_takes_no_time_can_be_paced_for_as_long_as_one_likes() -> None:
    """With `{"step": 0}`, which measures the server alone, a prefill row's cost sank to 0 and the budget to infinity:
    the engine died of an OverflowError after 3,133 prompts.
    """
    harness = Harness(step=0.0, row=0.0, n_ubatch=64)
    harness.pacer = harness.scheduler._pacer = Pacer("low_latency", 0.0, 64, 1e-5)
    for request_id in range(4000):
        harness.scheduler.add(generate(request_id, 16, 1), harness.now)
        plan = harness.scheduler.plan(harness.now)
        harness.scheduler.apply(plan, harness.backend.run(plan), harness.now)
    assert not harness.scheduler._queue


def test_it_crashes_and_hangs_at_the_step_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    backend = fake(crash_at=2)
    backend.run(decode(span(0, [1])))
    assert not killed
    backend.run(decode(span(0, [1], 1)))
    assert killed == [(os.getpid(), signal.SIGKILL)]

    class Hung(Exception):
        pass

    def sleep(seconds: float) -> None:
        if seconds > 1000:
            raise Hung

    hanging = FakeBackend(FakeSettings(hang_at=1), sleep=sleep)
    with pytest.raises(Hung):
        hanging.run(decode(span(0, [1])))


def test_settings_come_as_json_and_a_typo_is_refused() -> None:
    assert msgspec.json.decode(b'{"step": 0.5}', type=FakeSettings).step == 0.5
    with pytest.raises(msgspec.ValidationError, match="stepp"):
        msgspec.json.decode(b'{"stepp": 0.5}', type=FakeSettings)
