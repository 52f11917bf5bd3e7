"""What a step tells of itself: where prefixes came from, and what was computed."""

import pytest

from forgelm.config import Cache
from forgelm.engine.plan import Plan
from forgelm.ipc.messages import Admission, Stats
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness, prompt_of

KEPT = Cache(sequences=4)
ON_DISK = Cache(sequences=4, disk_tier=True)


def admitted(served: Harness) -> tuple[Admission, ...]:
    served.run()
    return served.scheduler.take_admissions()


def stats_of(served: Harness, *statuses: DecodeStatus) -> tuple[Plan, Stats]:
    """One step and its figures."""
    plan = served.scheduler.plan(served.now, served.backend.draft(served.scheduler.ask(served.now)))
    served.backend.statuses[:] = statuses
    outcome = served.backend.run(plan)
    served.scheduler.apply(plan, outcome, served.now)
    return plan, served.scheduler.stats(plan, outcome)


@pytest.mark.parametrize("split", [False, True])
def test_a_prefix_that_is_on_the_device(split: bool) -> None:
    """A hybrid goes on from a saved state, which lies in RAM; where the holder stopped it needs none."""
    served = Harness(cells=2000, cache=KEPT, host_bytes=1_000_000, split=split)
    served.add(1, 200, boundaries=(150,))
    assert admitted(served) == (Admission(200, 0, ""),)
    served.add(2, prompt_of(1, 200), boundaries=(150,))
    (second,) = admitted(served)
    assert second == (Admission(200, 150, "host") if split else Admission(200, 199, "device"))
    answer = served.tokens[1]
    served.add(3, [*prompt_of(1, 200), *answer, 5, 6])
    (third,) = admitted(served)
    assert (third.tokens, third.tier) == (202 + len(answer), "device")


def test_each_choice_is_a_sequence_with_a_prefix_of_its_own() -> None:
    served = Harness(cells=2000, cache=KEPT)
    served.add(1, 100, choices=3)
    assert sorted(admitted(served), key=lambda each: each.cached) == [
        Admission(100, 0, ""),
        Admission(100, 99, "device"),
        Admission(100, 99, "device"),
    ]


def test_a_prefix_that_was_moved_to_ram() -> None:
    served = Harness(cells=400, slots=1, cache=Cache(sequences=1), host_bytes=1_000_000)
    served.add(1, 300, max_tokens=2)
    served.run()
    served.add(2, 300, max_tokens=2)
    served.run()
    served.scheduler.take_admissions()
    served.add(3, prompt_of(1, 300), max_tokens=2)
    assert admitted(served) == (Admission(300, 299, "host"),)


def test_a_prefix_that_an_earlier_process_left_on_disk() -> None:
    served = Harness(cells=2000, slots=2, cache=ON_DISK, host_bytes=1_000_000)
    served.add(1, 200, max_tokens=3)
    served.run()
    while served.scheduler.archive(served.now, at_once=True):
        served.step()
    again = Harness(cells=2000, slots=2, cache=ON_DISK, host_bytes=1_000_000, files=dict(served.backend.files))
    again.add(1, 200, max_tokens=3)
    assert admitted(again) == (Admission(200, 199, "disk"),)


def test_one_that_gave_way_is_told_of_once() -> None:
    served = Harness(cells=100, slots=2, cache=Cache(prefix_cache=False))
    served.add(1, 30, max_tokens=40)
    served.add(2, 30, max_tokens=40)
    admissions = admitted(served)
    assert served.scheduler._preemptions
    assert admissions == (Admission(30, 0, ""),) * 2


def test_rows_of_which_logits_are_wanted() -> None:
    """None of a prompt's chunk that isn't its last; one of each that decodes, and one for each guess."""
    served = Harness(cells=2000, slots=2, n_ubatch=64, guess=3, errors=0)
    served.add(1, 100)
    _, first = stats_of(served)
    assert (first.decodes, first.ubatches, first.output_rows, first.prefill_tokens) == (1, 1, 0, 64)
    assert first.cells_highest == 64
    _, second = stats_of(served)
    assert second.output_rows == 1
    served.add(2, 10)
    seen = [stats_of(served) for _ in range(2)]
    guessed = [stats for plan, stats in seen if any(len(span.guesses) for span in served.spans(plan))]
    assert guessed
    assert all(stats.output_rows > stats.decodes for stats in guessed)
    for plan, stats in seen:
        asked = [span for span in served.spans(plan) if span.draw is not None]
        assert stats.output_rows == sum(1 + len(span.guesses) for span in asked)


def test_decodes_that_were_not_tried_are_not_counted() -> None:
    served = Harness(cells=2000, slots=2, split=True)
    served.add(1, 20)
    stats_of(served)
    served.add(2, 20)
    plan, stats = stats_of(served, DecodeStatus.FAILED)
    assert len(plan.decodes) == 2
    assert stats.decodes == 1


def test_a_step_without_decodes_tells_none() -> None:
    served = Harness(cells=2000)
    served.add(1, 20)
    served.abort(1)
    _, stats = stats_of(served)
    assert (stats.decodes, stats.ubatches, stats.output_rows) == (0, 0, 0)
