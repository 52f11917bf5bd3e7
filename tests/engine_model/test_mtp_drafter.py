"""The next-token head beside its model: whatever became of a slot, it computes what one fed from the start would."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forgelm.engine.mtp import MtpDrafter
from forgelm.errors import ModelError
from forgelm.llama.context import Logits
from forgelm.llama.heads import find_head
from forgelm.llama.lib import L
from forgelm.llama.model import Model
from forgelm.llama.mtp import HeadContext
from forgelm.llama.nextn import enable_hidden_states, hidden_states
from forgelm.llama.status import DecodeStatus
from tests.engine_model.drafting import Pair, none
from tests.llama.drive import assert_same, assert_wrong, ids, opened, options, words
from tests.llama.raw import greedy

PROMPT = 60
SLOTS = 4


@pytest.fixture(scope="module")
def headed(qwen35_path: Path) -> Iterator[Model]:
    model = Model.load(qwen35_path, n_gpu_layers=0, load_mtp=True)
    yield model
    model.close()


@contextmanager
def paired(model: Model, head: Path | None = None, **changes: Any) -> Iterator[Pair]:
    with opened(model, **{"rollback_rows": 4, **changes}) as context:
        drafter = MtpDrafter(context, head=head)
        try:
            yield Pair(context, drafter)
        finally:
            drafter.close()


@pytest.fixture
def pair(headed: Model) -> Iterator[Pair]:
    with paired(headed) as made:
        yield made


def begun(pair: Pair, slot: int = 0, **how: Any) -> Pair:
    pair.begin(slot, words(pair.target.model, slot, PROMPT), **how)
    return pair


def from_scratch(
    model: Model, tokens: Sequence[int], depth: int = 1, *, unknown: int = 0, gap: int = 0
) -> tuple[Logits, list[int]]:
    """What the head makes of `tokens` in fresh contexts: its logits of the token after them, and `depth` guesses one
    after the other. It doesn't know the state before the token at `unknown`, nor the `gap` tokens before that one."""
    with opened(model) as target:
        enable_hidden_states(target)
        target.add(0, ids(tokens), 0, logits=True)
        assert target.decode() is DecodeStatus.OK
        states = hidden_states(target, len(tokens)).copy()
    states = np.concatenate((np.zeros_like(states[:1]), states[:-1]))
    states[unknown] = 0
    head = HeadContext(model, options())
    before = unknown - gap
    if before:
        head.add(0, ids(tokens[:before]), states[:before], 0, logits=False)
    row = head.add(0, ids(tokens[unknown:]), states[unknown:], unknown, logits=True)
    found: Logits | None = None
    guesses: list[int] = []
    while len(guesses) < depth:
        assert head.decode() is DecodeStatus.OK
        logits = head.logits(row).copy()
        found = logits if found is None else found
        guesses.append(int(logits.argmax()))
        state = head.state(row).copy()
        row = head.add(0, ids(guesses[-1:]), state[None], len(tokens) + len(guesses) - 1, logits=True)
    head.close()
    assert found is not None
    return found, guesses


def next_logits(pair: Pair, slot: int) -> Logits:
    assert len(pair.draft({slot: 1})[slot]) == 1
    logits: Logits = pair.drafter._context.logits(-1).copy()
    return logits


def assert_in_step(pair: Pair, slot: int = 0, **lacking: int) -> None:
    assert_same(next_logits(pair, slot), from_scratch(pair.target.model, pair.tokens[slot], **lacking)[0])


def continuation(pair: Pair, slot: int, count: int) -> list[int]:
    return greedy(pair.target.model.handle, pair.tokens[slot], count)


@pytest.mark.parametrize(("chunk", "steps"), [(PROMPT, 0), (25, 1), (7, 40)])
def test_a_prompt_in_chunks_and_steps_without_guesses(pair: Pair, chunk: int, steps: int) -> None:
    begun(pair, chunk=chunk)
    for _ in range(steps):
        pair.verify(none([0]))
    assert_in_step(pair)


@pytest.mark.parametrize("right", [0, 1, 3])
def test_guesses_of_which_some_are_right(pair: Pair, right: int) -> None:
    guesses = continuation(begun(pair), 0, 3)[:right] + words(pair.target.model, 9, 3 - right)
    result = pair.verify({0: ids(guesses)})[0]
    assert len(result.drawn) == right + 1
    assert_in_step(pair)


def test_its_own_guesses(pair: Pair) -> None:
    begun(pair)
    for _ in range(4):
        assert len(pair.step({0: 3})[0].guesses) == 3
    assert_in_step(pair)


def test_guesses_that_were_never_verified(pair: Pair) -> None:
    """The scheduler may change its mind: a grammar forbids them, or there is no room."""
    begun(pair).draft({0: 3})
    assert_in_step(pair)
    pair.verify(none([0]))
    assert_in_step(pair)


def test_one_guess_after_another_from_its_own_states(pair: Pair) -> None:
    begun(pair)
    pair.verify(none([0]))
    assert pair.draft({0: 4})[0].tolist() == from_scratch(pair.target.model, pair.tokens[0], 4)[1]


def test_several_slots_at_once_guess_what_each_would_alone(pair: Pair) -> None:
    for slot in range(SLOTS):
        begun(pair, slot)
    pair.verify(none([1, 3]))
    guesses = pair.draft({2: 3, 0: 1, 1: 4, 3: 2})
    for slot, found in guesses.items():
        assert found.tolist() == from_scratch(pair.target.model, pair.tokens[slot], len(found))[1]


def test_a_forked_slot(pair: Pair) -> None:
    begun(pair)
    for _ in range(10):
        pair.verify(none([0]))
    pair.fork(0, 1, pair.target.length(0))
    pair.tokens[1], pair.prompts[1] = list(pair.tokens[0]), PROMPT
    pair.trim(0, 0)
    assert_in_step(pair, 1)


def test_a_fork_of_a_beginning_lacks_one_state(pair: Pair) -> None:
    """The target's state before its first new token is unknown: zeros stand for it, as at position 0."""
    begun(pair)
    pair.drafter.fork(0, 1, 40)
    pair.begin(1, pair.tokens[0][:40], follow_from=40)
    assert_in_step(pair, 1, unknown=40)
    pair.verify(none([1]))
    assert_in_step(pair, 1, unknown=40)


def test_a_fork_among_the_newest_rows_lacks_nothing(pair: Pair) -> None:
    begun(pair)
    for _ in range(10):
        pair.verify(none([0]))
    pair.drafter.fork(0, 1, PROMPT + 5)
    pair.begin(1, pair.tokens[0][: PROMPT + 5], follow_from=PROMPT + 5)
    assert_in_step(pair, 1)


def test_a_slot_that_was_saved_and_loaded(pair: Pair) -> None:
    begun(pair)
    pair.verify({0: ids(continuation(pair, 0, 2))})
    pair.verify(none([0]))
    saved = pair.save(0)
    pair.trim(0, 0)
    pair.restore(2, saved)
    pair.tokens[2], pair.prompts[2] = saved.tokens, PROMPT
    assert_in_step(pair, 2)


def test_nothing_is_saved_of_a_slot_it_knows_nothing_of(pair: Pair) -> None:
    assert pair.drafter.save(0) is None
    pair.drafter.restore(0, None, 40)
    begun(pair, 1).drafter.trim(1, 0)
    assert pair.drafter.save(1) is None


def test_a_slot_that_another_sequence_takes_over(pair: Pair) -> None:
    """The newest token was computed here with a guess, and the answer ended there: the next one goes on otherwise."""
    begun(pair).draft({0: 2})
    other = [*pair.tokens[0][:PROMPT], *words(pair.target.model, 8, 20)]
    pair.begin(0, other)
    assert_in_step(pair)


def test_any_mixture(pair: Pair) -> None:
    rng = np.random.default_rng(3)
    for slot in range(SLOTS):
        begun(pair, slot)
    for _ in range(60):
        slot = int(rng.integers(SLOTS))
        match rng.integers(5):
            case 0:
                pair.step(dict.fromkeys(range(SLOTS), int(rng.integers(1, 5))))
            case 1:
                pair.verify({slot: ids(continuation(pair, slot, int(rng.integers(1, 5))))})
            case 2:
                saved = pair.save(slot)
                pair.trim(slot, 0)
                pair.restore(slot, saved)
            case 3:
                pair.target.settle(slot)
                length = pair.target.length(slot)
                pair.fork(slot, SLOTS, length)
                pair.trim(slot, 0)
                pair.fork(SLOTS, slot, length)
                pair.trim(SLOTS, 0)
            case _:
                pair.verify(none(range(SLOTS)))
    for slot in range(SLOTS):
        assert_in_step(pair, slot)


def test_the_answer_is_the_same_as_without(headed: Model, pair: Pair) -> None:
    begun(pair)
    while len(pair.tokens[0]) < PROMPT + 50:
        pair.step({0: 4})
    assert pair.tokens[0][PROMPT : PROMPT + 50] == greedy(headed.handle, words(headed, 0, PROMPT), 50)


def test_what_it_was_not_shown_is_a_gap_and_it_goes_on_after_it(pair: Pair) -> None:
    begun(pair)
    for _ in range(5):
        pair.verify(none([0]), follows=False)
    assert len(pair.draft({0: 3})[0]) == 0
    pair.verify(none([0]))
    assert_in_step(pair, unknown=PROMPT + 5, gap=5)
    pair.step({0: 3})
    assert_in_step(pair, unknown=PROMPT + 5, gap=5)


def test_an_empty_memory_would_give_wrong_guesses_in_silence(pair: Pair) -> None:
    """Why it follows its target: llama.cpp computes at any position, whatever lies before."""
    begun(pair)
    pair.drafter.trim(0, 0)
    pair.verify(none([0]))
    assert_wrong(next_logits(pair, 0), from_scratch(pair.target.model, pair.tokens[0])[0])


def test_a_head_in_a_file_of_its_own(qwen35_apart_path: Path, headed: Model) -> None:
    model = Model.load(qwen35_apart_path, n_gpu_layers=0)
    with paired(model, find_head(qwen35_apart_path).path) as pair:
        begun(pair)
        pair.verify(none([0]))
        assert pair.draft({0: 3})[0].tolist() == from_scratch(headed, pair.tokens[0], 3)[1]
    model.close()


def test_a_model_without_a_head_is_refused(hybrid: Model) -> None:
    with opened(hybrid) as context, pytest.raises(ModelError, match="without a next-token head"):
        MtpDrafter(context)


def test_small_batches(headed: Model) -> None:
    """What waits of all slots is more than a batch takes."""
    with paired(headed, n_batch=32, n_ubatch=32) as pair:
        for slot in range(SLOTS):
            begun(pair, slot, chunk=20)
        for _ in range(12):
            pair.verify(none(range(SLOTS)))
        guesses = pair.draft(dict.fromkeys(range(SLOTS), 2))
        assert [len(found) for found in guesses.values()] == [2] * SLOTS
        for slot in range(SLOTS):
            assert_in_step(pair, slot)


def test_a_full_memory_leaves_a_gap(headed: Model) -> None:
    with paired(headed, n_ctx=256, n_batch=256) as pair:
        pair.begin(0, words(headed, 0, 253))
        assert 0 < len(pair.draft({0: 8})[0]) < 8
        assert len(pair.step({0: 1})[0].drawn) >= 1


def test_a_failure_costs_the_request_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(pair)
    with monkeypatch.context() as patch:
        patch.setattr(L, "llama_decode", lambda *_: -3)
        assert len(pair.draft({0: 3})[0]) == 0
    pair.verify(none([0]))
    assert len(pair.step({0: 3})[0].guesses) == 3
