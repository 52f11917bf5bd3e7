"""A draft model beside a target: it agrees with itself, whatever became of the slots meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from forgelm.engine.draft_model import CATCH_UP, DraftModelDrafter
from forgelm.engine.plan import Ask, Matcher
from forgelm.errors import ModelError
from forgelm.ipc.messages import Sampling
from forgelm.llama.context import Context
from forgelm.llama.lib import L
from forgelm.llama.model import Model
from tests.engine_model.drafting import GREEDY, Pair, none
from tests.llama.drive import opened, words

SLOTS = 4
RECOMMENDED = Sampling(temperature=1.0, top_k=20, top_p=0.95, presence_penalty=1.5, seed=7)


@contextmanager
def paired(model: Model, draft: Path, sampling: Sampling = GREEDY, **changes: Any) -> Iterator[Pair]:
    """A context of `model` and a drafter for it."""
    rollback = {"rollback_rows": 4} if model.recurrent else {"draft_rows": 32}
    with opened(model, **{**rollback, **changes}) as context:
        drafter = DraftModelDrafter(draft, context, asks=SLOTS)
        try:
            yield Pair(context, drafter, sampling)
        finally:
            drafter.close()


class Tally:
    """Of all guesses, how many were right."""

    def __init__(self) -> None:
        self.guessed = self.right = 0

    def step(self, pair: Pair, depths: dict[int, int]) -> None:
        for result in pair.step(depths).values():
            self.guessed += len(result.guesses)
            self.right += len(result.drawn) - 1


def begin_all(pair: Pair, model: Model) -> None:
    for slot in range(SLOTS):
        pair.begin(slot, words(model, slot, 70 + 9 * slot))


def one_depth_each(rng: np.random.Generator) -> dict[int, int]:
    """Some of the slots, each with a depth of its own."""
    return {slot: int(rng.integers(1, 5)) for slot in range(SLOTS) if rng.random() < 0.8}


def move_about(pair: Pair, rng: np.random.Generator, spare: int) -> None:
    """What a scheduler does between steps: preempt a slot and bring it back one way or another."""
    slot, length = int(rng.integers(SLOTS)), 0
    tokens, prompt = pair.tokens[slot], pair.prompts[slot]
    match rng.integers(4):
        case 0:
            pair.target.settle(slot)
            length = pair.target.length(slot)
            pair.fork(slot, spare, length)
            pair.trim(slot, 0)
            pair.fork(spare, slot, length)
            pair.trim(spare, 0)
        case 1:
            saved = pair.save(slot)
            pair.trim(slot, 0)
            pair.restore(slot, saved)
        case 2 if not pair.target.recurrent:
            pair.fork(slot, spare, prompt // 2)
            pair.trim(slot, 0)
            pair.fork(spare, slot, prompt // 2)
            pair.trim(spare, 0)
            pair.begin(slot, tokens)
            pair.prompts[slot] = prompt
        case _:
            pair.verify(none([slot]), follows=bool(rng.integers(2)))


def test_the_target_as_its_own_draft_is_right_whatever_happens_to_its_slots(starter: Model, starter_path: Path) -> None:
    rng, tally = np.random.default_rng(5), Tally()
    with paired(starter, starter_path) as pair:
        begin_all(pair, starter)
        while tally.guessed < 100:
            depths = one_depth_each(rng)
            before = tally.guessed
            tally.step(pair, depths)
            assert tally.guessed - before == sum(depths.values())
            move_about(pair, rng, spare=SLOTS)
    # Near ties are decided by the shape of the batch.
    assert tally.right >= 0.95 * tally.guessed


def test_guesses_are_drawn_with_the_same_random_numbers_and_penalties(starter: Model, starter_path: Path) -> None:
    """One slot alone: between batches of several the logits differ, and at this temperature many tokens with them."""
    tally = Tally()
    with paired(starter, starter_path, RECOMMENDED) as pair:
        pair.begin(0, words(starter, 0, 70))
        while tally.guessed < 60:
            tally.step(pair, {0: 4})
    assert tally.right >= 0.95 * tally.guessed


def test_a_recurrent_draft_is_right_whatever_happens_to_its_slots(hybrid: Model, qwen35_path: Path) -> None:
    rng, tally = np.random.default_rng(6), Tally()
    with paired(hybrid, qwen35_path) as pair:
        begin_all(pair, hybrid)
        while tally.guessed < 300:
            # Only what was one ubatch can be rolled back: the same number of rows each.
            tally.step(pair, dict.fromkeys(range(SLOTS), int(rng.integers(1, 5))))
            move_about(pair, rng, spare=SLOTS)
    assert tally.right >= 0.95 * tally.guessed


def test_a_recurrent_draft_catches_up_on_what_it_lacks(hybrid: Model, qwen35_path: Path) -> None:
    with paired(hybrid, qwen35_path) as pair:
        pair.begin(0, words(hybrid, 0, 90))
        pair.target.settle(0)
        pair.target.fork(0, 1, 90)
        pair.drafter.fork(0, 1, 60)
        pair.tokens[1], pair.prompts[1] = list(pair.tokens[0]), 90
        pair.drafter.restore(1, None, 90)
        assert len(pair.draft({1: 3})[1]) == 0
        assert pair.step({1: 3})[1].drawn == pair.step({0: 3})[0].drawn


def test_a_recurrent_draft_forgets_what_a_target_with_attention_alone_cuts(starter: Model, qwen35_path: Path) -> None:
    with paired(starter, qwen35_path) as pair:
        pair.begin(0, words(starter, 0, 80))
        pair.trim(0, 30)
        pair.begin(0, pair.tokens[0][:50])
        pair.begin(1, pair.tokens[0][:50])
        assert len(pair.draft({0: 4})[0]) == 0
        assert pair.draft({0: 4})[0].tolist() == pair.draft({1: 4})[1].tolist()


def test_a_forked_recurrent_draft_needs_no_catching_up(
    hybrid: Model, qwen35_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(hybrid, qwen35_path) as pair:
        pair.begin(0, words(hybrid, 0, 60))
        for _ in range(5):
            pair.verify(none([0]))
        pair.fork(0, 1, pair.target.length(0))
        pair.tokens[1], pair.prompts[1] = list(pair.tokens[0]), 60
        rows = rows_added(pair.drafter._context, monkeypatch)
        pair.draft({1: 1})
        assert rows == [1]


def rows_added(context: Context, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the number of rows of every `add`."""
    rows: list[int] = []
    add = context.add

    def counting(slot: int, tokens: Any, start: int, **wanted: Any) -> int:
        rows.append(len(tokens))
        return add(slot, tokens, start, **wanted)

    monkeypatch.setattr(context, "add", counting)
    return rows


def test_guesses_that_were_right_are_not_computed_again(
    starter: Model, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(starter, starter_path) as pair:
        pair.begin(0, words(starter, 0, 60))
        rows = rows_added(pair.drafter._context, monkeypatch)
        pair.step({0: 4})
        assert rows == [1, 1, 1, 1]
        rows.clear()
        pair.step({0: 4})
        # The last guess and the token after it are all that was lacking.
        assert rows == [2, 1, 1, 1]


def test_guesses_that_were_never_verified_are_forgotten(starter: Model, starter_path: Path) -> None:
    """The scheduler may change its mind, and the next sequence may go on otherwise where the last one ended."""
    with paired(starter, starter_path) as pair:
        pair.begin(0, words(starter, 0, 60))
        first = pair.draft({0: 4})[0].tolist()
        assert pair.draft({0: 4})[0].tolist() == first
        pair.tokens[0][-1] = int(words(starter, 3, 1)[0])
        pair.fork(0, 2, 60)
        pair.tokens[2], pair.prompts[2] = list(pair.tokens[0]), 60
        assert pair.draft({0: 4})[0].tolist() == pair.draft({2: 4})[2].tolist()


def test_a_prompt_is_computed_as_the_target_computes_it(
    starter: Model, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(starter, starter_path) as pair:
        rows = rows_added(pair.drafter._context, monkeypatch)
        pair.begin(0, words(starter, 0, 100), chunk=40)
        assert rows == [40, 40, 20]


def test_a_slot_that_lacks_much_catches_up_while_others_guess(starter: Model, starter_path: Path) -> None:
    """No call computes more than a batch, or `CATCH_UP` rows."""
    assert CATCH_UP > 64
    with paired(starter, starter_path, n_batch=64, n_ubatch=64) as pair:
        pair.begin(0, words(starter, 0, 40))
        pair.begin(1, words(starter, 1, 160))
        pair.drafter.trim(1, 0)
        pair.drafter.restore(1, None, pair.target.length(1))
        lengths = []
        for _ in range(3):
            guesses = pair.draft({1: 2, 0: 2})
            assert len(guesses[0]) == 2
            lengths.append(len(guesses[1]))
        assert lengths == [0, 0, 2]
        assert len(pair.step({1: 3})[1].drawn) == 4


def test_a_full_draft_context_gives_fewer_guesses_and_goes_on(starter: Model, starter_path: Path) -> None:
    with paired(starter, starter_path, n_ctx=256, n_batch=256) as pair:
        pair.begin(0, words(starter, 0, 252))
        assert 0 < len(pair.draft({0: 8})[0]) < 8
        pair.trim(0, 100)
        pair.begin(0, pair.tokens[0][:120])
        assert len(pair.step({0: 3})[0].drawn) == 4


def test_a_draft_that_fails_costs_the_request_nothing(
    starter: Model, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(starter, starter_path) as pair:
        pair.begin(0, words(starter, 0, 60))
        with monkeypatch.context() as patch:
            patch.setattr(L, "llama_decode", lambda *_: -3)
            assert len(pair.draft({0: 3})[0]) == 0
        assert len(pair.step({0: 3})[0].drawn) == 4


def test_nothing_is_guessed_after_the_end_of_an_answer(starter: Model, starter_path: Path) -> None:
    text = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    ends, found = starter.vocab.end_tokens(), 0
    with paired(starter, starter_path) as pair:
        pair.begin(0, starter.vocab.tokenize(text, add_special=False, parse_special=True).tolist())
        while not found and len(pair.tokens[0]) < 100:
            guesses = pair.step({0: 8})[0].guesses
            found = sum(token in ends for token in guesses)
            assert len(guesses) == 8 or guesses[-1] in ends
    assert found == 1


def test_a_token_that_is_fixed_is_the_first_guess(starter: Model, starter_path: Path) -> None:
    """Then a grammar isn't asked either: what it forbids is filtered later."""

    class Strict:
        """Is not to be asked."""

    with paired(starter, starter_path) as pair:
        pair.begin(0, words(starter, 0, 40))
        draw = replace(pair._draw(0), fixed=5, matcher=cast(Matcher, Strict()), logprobs=3)
        (guesses,) = pair.drafter.draft([Ask(0, draw, 3)])
        pair.tokens[0].append(5)
        assert guesses.tolist() == [5, *pair.draft({0: 2})[0]]


def test_another_architecture_with_the_same_vocabulary_may_draft(starter: Model, qwen35_path: Path) -> None:
    with paired(starter, qwen35_path) as pair:
        pair.begin(0, words(starter, 0, 40))
        alone = Pair(pair.target, pair.drafter)
        alone.begin(1, words(starter, 0, 40))
        while len(pair.tokens[0]) < 60:
            pair.step({0: 3})
        while len(alone.tokens[1]) < 60:
            alone.verify(none([1]))
        assert pair.tokens[0][:60] == alone.tokens[1][:60]


def test_another_vocabulary_is_refused_with_the_reason(starter: Model, gemma_path: Path) -> None:
    with opened(starter) as context, pytest.raises(ModelError, match="can't draft for this model: it has"):
        DraftModelDrafter(gemma_path, context, asks=SLOTS)
