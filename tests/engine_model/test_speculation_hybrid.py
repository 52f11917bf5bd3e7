"""Guesses on a hybrid, whose recurrent state goes back only a few rows, at once, and alone: the same text as without.

The model's weights are random, so its own head is never right; one who knows the answers guesses in its place where
guesses have to stay.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.config import Cache
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Plan, Span
from forgelm.ipc import messages
from forgelm.ipc.messages import Sampling
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests.engine_model.drive import Server, backend, request
from tests.engine_model.guessed import (
    CACHE,
    DEPTH,
    HYBRID,
    WARM,
    Answers,
    GuessingServer,
    Peeking,
    both,
    by_head,
    peeking,
    requests,
    said,
    served,
    wipe_all,
)
from tests.llama.drive import words

pytestmark = pytest.mark.model

LOOPING = Sampling(temperature=0.0, presence_penalty=-2.0, frequency_penalty=-0.5)
OFF = messages.Drafting("off")


def kept_counts(server: GuessingServer) -> set[tuple[int, int]]:
    """(guessed, right) of all guesses."""
    return {(each.drafted, each.accepted) for each in server.verifications}


# --- its own head, and n-grams ---


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("depth", [1, DEPTH])
def test_the_head_guesses_beside_eight(
    hybrid: Model, guessing_hybrid: LlamaBackend, qwen35_path: Path, depth: int, adaptive: bool
) -> None:
    asked = requests(hybrid, 8, 16, drafting=messages.Drafting(depth=depth))
    off, on, server = both(guessing_hybrid, asked, by_head(qwen35_path, adaptive=adaptive))
    assert on == off
    if not adaptive:
        assert server.drafted > 8 * depth
        assert max(len(span.guesses) for decode in server.guessed_decodes() for span in decode.spans) == depth


@pytest.mark.parametrize("depth", [1, DEPTH])
def test_the_head_guesses_alone(hybrid: Model, guessing_hybrid: LlamaBackend, head: Drafting, depth: int) -> None:
    off, on, server = both(
        guessing_hybrid, requests(hybrid, 2, 12, drafting=messages.Drafting(depth=depth)), head, together=False
    )
    assert on == off
    assert server.drafted > depth


def test_a_head_in_a_file_of_its_own(hybrid: Model, qwen35_apart_path: Path) -> None:
    apart = qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}")
    with backend(qwen35_apart_path, drafting=by_head(apart), **HYBRID) as made:
        off, on, server = both(made, requests(hybrid, 3, 12), by_head(apart))
    assert on == off
    assert server.drafted


def test_ngrams_of_a_text_that_loops(hybrid: Model, qwen35_path: Path) -> None:
    """Random weights repeat themselves where that is rewarded."""
    drafting = Drafting(ngram=True, depth=DEPTH, adaptive=False, rollback=DEPTH)
    with backend(qwen35_path, drafting=drafting, **HYBRID) as made:
        for together in (True, False):
            asked = requests(hybrid, 8 if together else 2, 40, sampling=LOOPING)
            off, on, server = both(made, asked, drafting, together=together)
            assert on == off
            assert 8 < server.accepted < server.drafted


# --- one who knows ---


def test_any_number_of_guesses_stays_and_the_rest_goes(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting
) -> None:
    """Next to sequences that guess less or not at all, which have decodes of their own."""
    asked = requests(hybrid, 8, 40)
    off = peek.learn(asked)
    mixed = [msgspec.structs.replace(each, drafting=OFF) if each.id > 6 else each for each in asked]
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
    assert served(server, mixed) == off
    assert {(guessed, right) for guessed in range(1, DEPTH + 1) for right in range(guessed + 1)} <= kept_counts(server)
    assert all(len({span.rows for span in decode.spans}) == 1 for decode in server.guessed_decodes())
    assert any(len(plan.decodes) > 1 and not plan.prefill_rows for plan in server.plans)


def test_prompts_are_read_beside_guesses(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting
) -> None:
    asked = requests(hybrid, 8, 24)
    off = peek.learn(asked)
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE, max_chunk=48)

    def arrive(server: GuessingServer) -> None:
        if len(server.plans) in range(3, 17, 2):
            late = asked[len(server.plans) // 2]
            server._answers[late.id] = []
            server.scheduler.add(late, 0.0)

    server.between = arrive
    assert served(server, asked[:1]) == off
    assert any(plan.prefill_rows and _guessed(plan) for plan in server.plans)


def _guessed(plan: Plan) -> list[Span]:
    return [span for decode in plan.decodes for span in decode.spans if len(span.guesses)]


def test_seeds(hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting) -> None:
    asked = requests(hybrid, 8, 32, sampling=WARM)
    off = peek.learn(asked)
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
    assert served(server, asked) == off
    assert server.accepted > 32


def test_choices(hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting) -> None:
    asked = requests(hybrid, 2, 24, sampling=WARM, choices=3)
    off = peek.learn(asked)
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
    assert served(server, asked) == off
    assert len({tuple(answer) for answer in off.values()}) == 6
    assert server.accepted > 24


def test_preempted(hybrid: Model, qwen35_path: Path, head: Drafting) -> None:
    """Six answers outgrow the pool: the youngest give way, at times just rolled back, and come back."""
    prompts = [words(hybrid, seed, 24) for seed in range(6)]
    asked = [request(number, prompt, 40) for number, prompt in enumerate(prompts)]
    small: dict[str, Any] = {"context": 256, "parallel": 6, "n_batch": 64, "n_ubatch": 64, "flash_attention": "off"}
    with backend(qwen35_path, CACHE, drafting=head, **small) as made, peeking(made) as peek:
        off: Answers = {}
        for each in asked:
            off |= served(Server(made), [each])
        peek.know(asked, off)
        for cache in (Cache(prefix_cache=False), CACHE):
            server = GuessingServer(made, drafting=head, cache=cache, max_chunk=64)
            assert served(server, asked) == off
            assert server.preemptions
            assert server.accepted > 40
            assert len({right for _, right in kept_counts(server)}) == DEPTH + 1


def test_cancelled_between_steps(hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting) -> None:
    asked = requests(hybrid, 8, 30)
    off = peek.learn(asked)
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
    gone = {4: 2, 6: 5, 9: 7}

    def leave(server: GuessingServer) -> None:
        if len(server.plans) in gone:
            server.scheduler.abort(gone[len(server.plans)], 0.0)

    server.between = leave
    # One more than there are slots: it takes the place of one that left.
    late = request(9, words(hybrid, 1, 27), 30)
    on = said(server.serve([*asked, late]))
    wipe_all(guessing_hybrid)
    assert on.pop((9, 0)) == off[1, 0]
    for key, answer in on.items():
        assert answer == off[key][: len(answer)]
        assert len(answer) < 30 if key[0] in gone.values() else len(answer) == 30
