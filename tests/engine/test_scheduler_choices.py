"""Several answers to one prompt, tokens that must follow, thinking that is cut short, and grammars that fail."""

import pytest

from forgelm.config import Cache
from forgelm.engine.fake import FIRST_TOKEN, FakeBackend, fake_token
from forgelm.engine.fake_memory import STATE_BYTES
from forgelm.engine.plan import UNDECIDED, Decode, DecodeResult, Drawn
from forgelm.ipc.messages import Budget, Constraint
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness, prompt_of

SHARED = Cache(sequences=6)


def cached(*, split: bool = False, **settings) -> Harness:
    return Harness(cells=2000, split=split, cache=SHARED, host_bytes=STATE_BYTES * 100, **settings)


# --- several choices ---


@pytest.mark.parametrize("split", [False, True], ids=["attention", "hybrid"])
def test_four_choices_cost_one_prefill(split: bool) -> None:
    harness = cached(split=split)
    harness.add(1, 300, max_tokens=20, choices=4)
    harness.run()
    harness.check_answers()
    assert len(harness.ended) == 4
    computed = sum(plan.prefill_rows + plan.decode_rows for plan in harness.plans)
    # The prompt once; of each other choice the last token again; and 19 tokens each (the last one isn't computed).
    assert computed == 300 + 3 + 4 * 19


def test_choices_differ_and_end_on_their_own() -> None:
    harness = cached()
    stop = fake_token(prompt_of(1, 30), 2)
    harness.add(1, 30, max_tokens=10, choices=3, stop_tokens=(stop,))
    harness.run()
    harness.check_answers()
    assert harness.ended[1, 2].finish == "stop"
    assert len(harness.tokens[1, 2]) == 1
    assert harness.tokens[1] != harness.tokens[1, 1]


def test_more_choices_than_slots_take_turns() -> None:
    harness = cached(slots=2)
    harness.add(1, 50, max_tokens=5, choices=7)
    harness.run()
    harness.check_answers()
    assert harness.started == [1]
    assert sum(plan.prefill_rows for plan in harness.plans) < 80


def test_one_choice_can_be_given_up_and_the_others_go_on() -> None:
    harness = cached()
    harness.add(1, 30, max_tokens=40, choices=3)
    harness.until(1, 5)
    harness.scheduler.abort(1, harness.now, 1)
    harness.scheduler.abort(1, harness.now, 1)
    harness.run()
    assert harness.ended[1, 1].finish == "abort"
    assert {harness.ended[1].finish, harness.ended[1, 2].finish} == {"length"}


def test_an_abort_ends_all_choices_running_or_not() -> None:
    harness = cached(slots=2)
    harness.add(1, 30, max_tokens=40, choices=4)
    harness.until(1, 2)
    harness.abort(1)
    harness.run()
    assert [harness.ended[key].finish for key in (1, (1, 1), (1, 2), (1, 3))] == ["abort"] * 4
    assert not harness.scheduler.has_work


# --- what must follow ---


def test_forced_tokens_are_computed_together() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=20, constraint=Constraint("* 1001 1002 1003 1004 *"))
    harness.run()
    harness.check_answers()
    assert harness.tokens[1][1:5] == [1001, 1002, 1003, 1004]
    assert harness.ended[1].finish == "stop"
    # The prompt; the drawn and the four forced ones; no more: the last one ends the answer.
    assert [plan.prefill_rows + plan.decode_rows for plan in harness.plans if plan.decodes] == [10, 5]


def test_many_forced_tokens_are_computed_like_a_prompt_and_hold_nobody_up() -> None:
    harness = Harness(row=0.01)
    harness.add(1, 10, max_tokens=100, constraint=Constraint("* " + "1001 " * 60 + "*"))
    harness.add(2, 10, max_tokens=60)
    harness.run()
    harness.check_answers()
    assert any(plan.prefill_rows > 1 and plan.decode_rows == 1 for plan in harness.plans)


def test_with_logprobs_nothing_is_jumped_over() -> None:
    """The harness checks that there is one log-probability per token."""
    harness = Harness()
    harness.add(1, 10, max_tokens=20, constraint=Constraint("* 1001 1002 1003 *"), logprobs=2)
    harness.run()
    harness.check_answers()
    assert len(harness.tokens[1]) == 5


def test_a_grammar_that_is_complete_ends_the_answer() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=20, constraint=Constraint("1001|1002 1003"))
    harness.run()
    assert harness.ended[1].finish == "stop"
    assert harness.tokens[1] in ([1001, 1003], [1002, 1003])


@pytest.mark.parametrize("grammar", ["broken", "1001 broken", "* 1001 * broken"])
def test_a_grammar_that_fails_ends_its_request_alone(grammar: str) -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=20, constraint=Constraint(grammar))
    harness.add(2, 10, max_tokens=20)
    harness.run()
    assert harness.ended[1].finish == "refused"
    assert "broken" in harness.ended[1].error
    assert harness.ended[2].finish == "length"


def test_forced_tokens_survive_preemption() -> None:
    harness = Harness(cells=64, slots=3)
    for request_id in range(1, 4):
        harness.add(request_id, 12, max_tokens=40, constraint=Constraint("* 1001 1002 1003 " * 12))
    harness.run()
    harness.check_answers()
    assert harness.scheduler._preemptions


# --- thinking ---

ENDS, CLOSING = (FIRST_TOKEN + 1,), (1400, FIRST_TOKEN + 1, 1401)


@pytest.mark.parametrize("logprobs", [-1, 1])
def test_thinking_that_takes_too_long_is_closed(logprobs: int) -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=20, budget=Budget(5, ENDS, CLOSING), logprobs=logprobs)
    harness.run()
    harness.check_answers()
    assert tuple(harness.tokens[1][5:8]) == CLOSING
    assert len(harness.tokens[1]) == 20


def test_thinking_that_ended_by_itself_is_left_alone() -> None:
    harness = Harness()
    ends = (fake_token(prompt_of(1, 10)),)
    harness.add(1, 10, max_tokens=20, budget=Budget(5, ends, CLOSING))
    harness.run()
    assert CLOSING not in zip(*(harness.tokens[1][n:] for n in range(3)), strict=False)


def test_the_grammar_begins_where_thinking_was_closed() -> None:
    harness = Harness()
    constraint = Constraint(f"{ENDS[0]} 1401 1100|1101 1200", triggers=ENDS)
    harness.add(1, 10, max_tokens=30, budget=Budget(5, ENDS, CLOSING), constraint=constraint)
    harness.run()
    harness.check_answers()
    assert harness.ended[1].finish == "stop"
    assert harness.tokens[1][-1] == 1200


# --- the ends of answers ---


def test_no_stop_token_is_drawn_before_the_least_length() -> None:
    harness = Harness()
    stop = tuple(range(FIRST_TOKEN, FIRST_TOKEN + 250))
    harness.add(1, 10, max_tokens=100, stop_tokens=stop, min_tokens=30)
    harness.run()
    harness.check_answers()
    assert not set(harness.tokens[1][:30]) & set(stop)
    assert harness.ended[1].finish == "stop"


def test_nothing_left_to_draw_is_an_error_of_that_request() -> None:
    harness = Harness()
    harness.add(1, 10, max_tokens=10, stop_tokens=(1001,), min_tokens=5, constraint=Constraint("1001 1002"))
    harness.add(2, 10)
    harness.run()
    assert harness.ended[1].finish == "refused"
    assert harness.ended[2].finish == "length"


def test_a_token_that_the_highest_logits_cant_tell_is_drawn_from_a_whole_row(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = cached()
    decode = FakeBackend._decode
    asked: list[int] = []

    def undecided(self: FakeBackend, operation: Decode) -> DecodeResult:
        result = decode(self, operation)
        [span] = operation.spans
        if result.status is not DecodeStatus.OK or span.draw is None or len(asked) >= 1 or span.draw.index < 3:
            return result
        asked.append(span.draw.index)
        return DecodeResult(result.status, ((Drawn(UNDECIDED),),), result.kept)

    monkeypatch.setattr(FakeBackend, "_decode", undecided)
    harness.add(1, 40, max_tokens=10)
    harness.run()
    harness.check_answers()
    assert asked == [3]
    assert sum(plan.prefill_rows + plan.decode_rows for plan in harness.plans) == 40 + 9 + 1
