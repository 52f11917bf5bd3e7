"""Every request ends exactly once, with the right reason, and leaves nothing behind.

The harness refuses a second end."""

import pytest

from forgelm.engine.plan import Decode, Trim
from forgelm.ipc.messages import Constraint, Generate, Sampling
from tests.engine.harness import Harness, alone, generate

# --- length, context, stop ---


@pytest.mark.parametrize("prompt", [1, 2, 63, 64, 65, 254, 255])
@pytest.mark.parametrize("max_tokens", [1, 2, 1000])
def test_an_answer_ends_at_max_tokens_or_at_the_context(prompt: int, max_tokens: int) -> None:
    harness = Harness(cells=256)
    harness.add(1, prompt, max_tokens=max_tokens)
    harness.run()
    harness.check_answers()
    assert harness.ended[1].finish == "length"
    assert len(harness.tokens[1]) == min(max_tokens, 256 - prompt)


def test_max_tokens_far_beyond_the_context_takes_no_memory_for_it() -> None:
    harness = Harness(cells=64)
    harness.add(1, 10, max_tokens=2**40)
    assert len(harness.scheduler._queue._waiting[0].tokens) == 64


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_stop_token_ends_the_answer_and_is_delivered(at: int) -> None:
    tokens, _ = alone(generate(1, 20, 30), 256)
    harness = Harness()
    harness.add(1, 20, max_tokens=30, stop_tokens=(5, tokens[at]))
    harness.run()
    harness.check_answers()
    assert harness.ended[1].finish == "stop"
    assert harness.tokens[1][-1] == tokens[at]


def test_a_stop_token_on_the_last_allowed_place_is_a_stop() -> None:
    tokens, _ = alone(generate(1, 20, 3), 256)
    harness = Harness()
    harness.add(1, 20, max_tokens=3, stop_tokens=(tokens[2],))
    harness.run()
    assert harness.ended[1].finish == "stop"


def test_without_stop_tokens_nothing_but_length_ends_an_answer() -> None:
    """`ignore_eos` is the API sending none."""
    harness = Harness()
    harness.add(1, 20, max_tokens=200)
    harness.run()
    assert (harness.ended[1].finish, len(harness.tokens[1])) == ("length", 200)


def test_a_prompt_that_holds_a_stop_token_isnt_stopped_by_it() -> None:
    harness = Harness()
    harness.add(1, [7, 8, 9], max_tokens=4, stop_tokens=(8, 9))
    harness.run()
    assert len(harness.tokens[1]) == 4


# --- aborts ---


def test_abort_while_waiting() -> None:
    harness = Harness(slots=1)
    harness.add(1, 10, max_tokens=30)
    harness.add(2, 10)
    harness.step()
    harness.abort(2)
    assert [(delta.id, delta.finish) for delta in harness.step() if delta.id == 2] == [(2, "abort")]
    assert harness.started == [1]
    harness.run()
    harness.check_answers()


def test_abort_before_the_first_step() -> None:
    harness = Harness()
    harness.add(1, 10)
    harness.abort(1)
    deltas = harness.step()
    assert [delta.finish for delta in deltas] == ["abort"]
    assert not harness.scheduler.has_work
    assert not harness.started


def test_abort_while_the_prompt_is_half_read_wipes_the_slot_before_anybody_gets_it() -> None:
    harness = Harness(slots=1, n_ubatch=32)
    harness.add(1, 200)
    harness.add(2, 20)
    harness.step()
    assert harness.backend.memory[0]
    harness.abort(1)
    harness.step()
    kinds = [type(op) for op in harness.plans[-1].operations]
    assert kinds == [Trim, Decode]
    harness.run()
    harness.check_answers()
    assert not any(harness.backend.memory)


def test_abort_while_decoding_gives_the_slot_to_the_next_in_the_same_step() -> None:
    harness = Harness(slots=1)
    harness.add(1, 10, max_tokens=100)
    harness.add(2, 10, max_tokens=3)
    harness.until(1, 4)
    harness.abort(1)
    deltas = harness.step()
    assert [(delta.id, delta.finish) for delta in deltas] == [(1, "abort"), (2, None)]
    assert harness.ended[1].timings is not None
    harness.run()
    harness.check_answers()


def test_abort_after_it_gave_way_to_others() -> None:
    harness = Harness(cells=128)
    for request_id in range(1, 4):
        harness.add(request_id, 20, max_tokens=80)
    harness.step()
    while not harness.scheduler._queue:
        harness.step()
    harness.abort(3)
    harness.run()
    harness.check_answers()
    assert harness.ended[3].finish == "abort"
    assert harness.started == [1, 2, 3]


def test_abort_of_one_that_just_ended_of_an_unknown_one_and_twice_is_harmless() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=1)
    harness.add(2, 10, max_tokens=50)
    harness.step()
    assert harness.ended.keys() == {1}
    for request_id in (1, 99, 2, 2):
        harness.abort(request_id)
    harness.run()
    assert {i: delta.finish for i, delta in harness.ended.items()} == {1: "length", 2: "abort"}


def test_everything_aborted_leaves_an_idle_engine_with_empty_memory() -> None:
    harness = Harness(slots=4)
    for request_id in range(10):
        harness.add(request_id, 20 + request_id, max_tokens=50)
    for _ in range(3):
        harness.step()
    for request_id in range(10):
        harness.abort(request_id)
    harness.step()
    assert not harness.scheduler.has_work
    assert harness.memory.ledger.used == 0
    assert not any(harness.backend.memory)
    assert len(harness.ended) == 10


# --- refusals ---


@pytest.mark.parametrize(
    "request_",
    [
        generate(1, 0),
        generate(1, 256),
        generate(1, 5000),
        generate(1, 10, choices=0),
        generate(1, 10, constraint=Constraint("broken")),
        Generate(1, b"12345", 8),
        generate(1, 10, max_tokens=0),
        generate(1, 10, max_tokens=-1),
    ],
    ids=lambda request: f"{len(request.prompt)}B-{request.max_tokens}-{request.choices}-{request.logprobs}",
)
def test_what_cant_be_served_ends_with_an_error_and_the_next_request_works(request_: Generate) -> None:
    """A prompt of five bytes, or an answer of no tokens, used to end the process and everybody's requests with it."""
    harness = Harness(cells=256)
    harness.scheduler.add(request_, harness.now)
    assert harness.scheduler.has_work
    harness.run()
    assert harness.ended[1].finish == ("refused" if request_.constraint else "error")
    assert harness.ended[1].error
    assert not harness.scheduler.has_work
    harness.add(2, 10)
    harness.run()
    assert harness.ended[2].finish == "length"


def test_a_request_may_reuse_the_id_of_one_that_ended() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=2)
    harness.run()
    harness.ended.clear()
    harness.started_ids.clear()
    harness.add(1, 12, max_tokens=3)
    harness.run()
    assert len(harness.tokens[1]) == 3


# --- what is reported ---


def test_timings_add_up_to_the_requests_life() -> None:
    harness = Harness(slots=1, step=0.01, row=0.001)
    harness.add(1, 50, max_tokens=11)
    harness.add(2, 50, max_tokens=1)
    arrived = harness.now
    harness.run()
    first, second = harness.ended[1].timings, harness.ended[2].timings
    assert first is not None
    assert second is not None
    assert first.queue == 0
    assert first.prefill == pytest.approx(0.06)
    assert first.decode == pytest.approx(0.1)
    assert second.queue == pytest.approx(0.16)
    assert arrived + second.queue + second.prefill + second.decode == pytest.approx(harness.now)


def test_a_request_is_reported_as_started_once_even_if_it_starts_over() -> None:
    harness = Harness(cells=128)
    for request_id in range(1, 4):
        harness.add(request_id, 20, max_tokens=80)
    harness.run()
    assert harness.scheduler._preemptions > 0
    assert harness.started == [1, 2, 3]


def test_stats_count_rows_requests_and_cells() -> None:
    harness = Harness(slots=2, n_ubatch=64)
    for request_id in range(1, 5):
        harness.add(request_id, 10, max_tokens=20)
    harness.step()
    harness.step()
    plan = harness.plans[-1]
    outcome = harness.backend.run(type(plan)())
    stats = harness.scheduler.stats(plan, outcome)
    assert (stats.running, stats.waiting, stats.decode_tokens, stats.prefill_tokens) == (2, 2, 2, 0)
    assert stats.cells_used == 22 == sum(map(len, harness.backend.memory))


def test_draws_are_numbered_by_answer_token_also_after_starting_over() -> None:
    """Seed, choice and this number fix the random number, so a request that gave way draws the same ones again."""
    harness = Harness(cells=128)
    for request_id in range(1, 4):
        harness.add(request_id, 20, max_tokens=80, sampling=Sampling(temperature=0.7, seed=5))
    seen: list[int] = []
    while harness.scheduler.has_work:
        plan = harness.scheduler.plan(harness.now)
        draws = [span.draw for span in harness.spans(plan) if span.draw]
        assert all(len(draw.generated) == draw.index for draw in draws)
        seen += [draw.index for draw in draws]
        harness.scheduler.apply(plan, harness.backend.run(plan), harness.now)
    assert harness.scheduler._preemptions > 0
    assert sorted(seen) == sorted(3 * list(range(80)))
