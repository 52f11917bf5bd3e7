"""Who computes what: decoders first, prompts in bounded chunks, nobody for ever behind."""

import pytest

from forgelm.config import MIN_CHUNK, Cache
from forgelm.engine.pacing import ALONE_SECONDS
from tests.engine.harness import Harness, generate


def test_one_request_alone_gets_its_tokens() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=5)
    harness.run()
    harness.check_answers()
    assert len(harness.tokens[1]) == 5
    assert harness.ended[1].finish == "length"


def test_decoders_go_on_in_every_step_while_a_long_prompt_is_read() -> None:
    harness = Harness(cells=1024, n_ubatch=32)
    harness.add(1, 4, max_tokens=100)
    harness.add(2, 4, max_tokens=100)
    harness.until(2, 3)
    harness.add(3, 500)
    while not harness.tokens[3]:
        assert {delta.id for delta in harness.step()} >= {1, 2}
        assert harness.plans[-1].decode_rows == 2
    harness.run()
    harness.check_answers()


@pytest.mark.parametrize("n_ubatch", [32, 64, 128])
def test_a_step_never_has_more_rows_than_one_ubatch(n_ubatch: int) -> None:
    """llama.cpp would split it, and the time of the second half would be everybody's."""
    harness = Harness(cells=2000, n_ubatch=n_ubatch, row=1e-6)
    for request_id in range(8):
        harness.add(request_id, 200, max_tokens=30)
    harness.run()
    harness.check_answers()
    rows = [plan.decode_rows + plan.prefill_rows for plan in harness.plans]
    assert max(rows) == n_ubatch


def test_a_chunk_beside_decoders_stays_within_the_pacers_budget() -> None:
    harness = Harness(cells=4000, n_ubatch=512, step=0.02, row=0.001, target_itl_ms=100)
    harness.add(1, 4, max_tokens=300)
    harness.until(1, 4)
    harness.add(2, 3000)
    while not harness.tokens[2]:
        budget = harness.pacer.prefill_rows(1)
        harness.step()
        assert 0 < harness.plans[-1].prefill_rows <= budget
        # The target is 0.1 s: 20 ms of decoding leave 80 rows of a millisecond.
        assert budget <= 81


def test_a_chunk_with_nobody_decoding_is_bounded_in_time() -> None:
    """2,048 rows were 10 s on two cores: an abort and the watchdog would have waited for all of them."""
    harness = Harness(cells=4000, n_ubatch=2048, step=0.0, row=0.005)
    harness.add(1, 3500, max_tokens=1)
    while not harness.ended:
        before = harness.now
        harness.step()
        assert harness.now - before <= ALONE_SECONDS * 1.01


def test_a_slow_machine_still_reads_prompts() -> None:
    """One row costs more than the whole target: chunks have a least size, or a prompt would never be read."""
    harness = Harness(step=0.5, row=0.5)
    harness.add(1, 4, max_tokens=50)
    harness.until(1, 2)
    harness.add(2, 100, max_tokens=2)
    harness.step()
    assert harness.plans[-1].prefill_rows == MIN_CHUNK
    harness.run()
    harness.check_answers()


def test_a_hybrids_chunks_end_where_a_state_shall_be_left() -> None:
    harness = Harness(cells=512, n_ubatch=64, split=True, cache=Cache(), host_bytes=10_000)
    harness.add(1, 300, boundaries=(1, 64, 100, 101, 299))
    ends = []
    while not harness.tokens[1]:
        harness.step()
        ends += [span.start + len(span.tokens) for span in harness.spans(harness.plans[-1])]
    assert {1, 64, 100, 299, 300} <= set(ends)
    assert 101 not in ends, "too close to the one before"
    assert ends == sorted(ends)


def test_others_pay_nothing_for_boundaries() -> None:
    plain, marked = Harness(cells=512), Harness(cells=512, cache=Cache())
    plain.add(1, 300)
    marked.add(1, 300, boundaries=(1, 64, 100, 101, 299))
    plain.run()
    marked.run()
    assert len([plan for plan in plain.plans if plan.decodes]) == len([plan for plan in marked.plans if plan.decodes])


def test_boundaries_at_zero_at_the_end_and_beyond_are_harmless() -> None:
    harness = Harness()
    harness.add(1, 20, boundaries=(0, 20, 21, 500))
    harness.run()
    harness.check_answers()


def test_a_short_prompt_doesnt_wait_for_a_long_one_to_be_read() -> None:
    harness = Harness(cells=4096, n_ubatch=64)
    harness.add(1, 3000)
    harness.step()
    harness.add(2, 10, max_tokens=1)
    steps = 0
    while not harness.tokens[2]:
        harness.step()
        steps += 1
    assert steps <= 2
    assert not harness.tokens[1]


def test_a_long_prompt_is_read_although_short_ones_keep_coming() -> None:
    """Each takes the other's turn: a stream of short prompts gets half the steps, not all."""
    harness = Harness(cells=4096, n_ubatch=64, row=0.001)
    harness.add(0, 1500)
    for request_id in range(1, 200):
        harness.add(request_id, 60, max_tokens=1)
        harness.step()
        if harness.tokens[0]:
            break
    assert harness.tokens[0]
    assert request_id < 70
    assert harness.ended.keys() - {0}


def test_two_prompts_that_dont_fit_together_are_served_one_after_the_other() -> None:
    """The shorter one's turn came, it found no cells, and the plan stopped there: empty, with a prompt half read. That
    looked like a deadlock, so the half-read prompt was thrown out, in every second step, for ever.
    """
    harness = Harness(cells=256, n_ubatch=64)
    harness.add(1, 200)
    harness.add(2, 100)
    harness.run(limit=60)
    harness.check_answers()
    assert harness.ended[1].timings is not None
    assert harness.ended[1].timings.preemptions == 0


def test_a_long_prompt_gets_its_cells_although_short_ones_keep_coming() -> None:
    """Every short prompt fits beside the others, the long one only once they are gone: somebody must stop them."""
    harness = Harness(cells=1024, slots=8, n_ubatch=128)
    for request_id in range(1, 5):
        harness.add(request_id, 40, max_tokens=40)
    harness.step()
    harness.add(0, 900, max_tokens=2)
    for request_id in range(10, 400):
        if harness.tokens[0]:
            break
        harness.add(request_id, 40, max_tokens=40)
        harness.step()
    assert harness.tokens[0]
    assert request_id < 120


@pytest.mark.parametrize("answer", [1, 2, 3, 4])
def test_an_idle_engine_doesnt_let_the_head_of_the_queue_be_overtaken_again_and_again(answer: int) -> None:
    """With answers as long as the turns are apart, every free moment was a short one's turn."""
    harness = Harness(cells=256, n_ubatch=128)
    for request_id in range(200):
        harness.add(request_id, 250 if request_id == 0 else 20, max_tokens=answer)
    for _ in range(30):
        harness.step()
    assert 0 in harness.ended
    harness.run()
    harness.check_answers()


def test_short_prompts_overtake_a_long_one_where_both_fit() -> None:
    harness = Harness(cells=4096, n_ubatch=64)
    harness.add(1, 3000)
    harness.add(2, 10)
    harness.step()
    harness.step()
    assert harness.tokens[2]
    assert not harness.tokens[1]


def test_more_requests_than_slots_take_turns_in_order_of_arrival() -> None:
    harness = Harness(slots=2)
    for request_id in range(20):
        harness.add(request_id, 10, max_tokens=3)
    harness.run()
    harness.check_answers()
    assert harness.started == list(range(20))


def test_a_sequence_that_decodes_and_one_that_prefills_share_a_decode_unless_the_model_splits() -> None:
    for split in (False, True):
        harness = Harness(split=split)
        harness.add(1, 4, max_tokens=20)
        harness.until(1, 2)
        harness.add(2, 30)
        harness.step()
        plan = harness.plans[-1]
        assert (plan.decode_rows, plan.prefill_rows) == (1, 30)
        assert [decode.rows for decode in plan.decodes] == ([1, 30] if split else [31])


def test_the_plan_says_how_long_it_should_take() -> None:
    harness = Harness(cells=4000, n_ubatch=512, step=0.01, row=0.002)
    harness.add(1, 1000, max_tokens=30)
    harness.step()
    plan = harness.plans[-1]
    assert plan.predicted == pytest.approx(plan.prefill_rows * 0.002)
    harness.run()
    assert harness.plans[-2].predicted == pytest.approx(0.01)


def test_a_queue_of_thousands_costs_no_more_per_step() -> None:
    """Only as many waiting requests are looked at as there are free slots."""
    harness = Harness()
    for request_id in range(5000):
        harness.scheduler.add(generate(request_id, 3, 1), 1.0)
    harness.scheduler.plan(1.0)
    assert len(harness.scheduler._running) == 4
