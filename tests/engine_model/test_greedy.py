"""Greedy text is llama.cpp's own single-sequence text, whatever else runs: alone, eight at a time, preempted.

The one allowed difference is a tie: where the reference's row holds two candidates closer than the noise between batch
shapes (see `assert_greedy`), either may be taken, and the reference goes on from the one that was.
"""

from pathlib import Path

import pytest
from msgspec import structs

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.ipc.messages import Sampling
from forgelm.llama.model import Model
from tests.engine_model.drive import Server, agreement, assert_drawn, backend, numbered, request
from tests.llama.drive import assert_greedy, words

pytestmark = pytest.mark.model

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one line about the sea.",
    "How many days are there in a week?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "What do bees make?",
    "Finish the sentence: Once upon a time",
    "Is 17 a prime number?",
    "Give me a word that rhymes with cat.",
    "Who wrote Hamlet?",
    "What is 2 + 2?",
    "List two fruits.",
    "What does a compiler do?",
    "Say hello in Japanese: こんにちは",
    "Describe snow to a child, please.",
    "What is the opposite of hot?",
    "def add(a, b):",
    "Which planet is the largest?",
    "Tell me a very short joke about a duck and a horse.",
)
ANSWER = 12
TIES = 0.1
"""The share of tokens that may be ties: 5 of 240 were seen eight at a time, none alone."""


def asked(model: Model, questions: tuple[str, ...] = QUESTIONS) -> list[list[int]]:
    frame = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [
        model.vocab.tokenize(frame.format(question), add_special=True, parse_special=True).tolist()
        for question in questions
    ]


def check(model: Model, prompts: list[list[int]], answers: dict[int, list[int]]) -> None:
    ties = sum(assert_greedy(model, prompt, answers[number]) for number, prompt in enumerate(prompts, start=1))
    assert ties <= TIES * sum(map(len, answers.values()))


def test_twenty_prompts_alone(starter: Model, starter_backend: LlamaBackend) -> None:
    prompts, server = asked(starter), Server(starter_backend)
    answers: dict[int, list[int]] = {}
    for each in numbered(prompts, ANSWER):
        answers |= server.answers([each])
    check(starter, prompts, answers)


def test_twenty_prompts_eight_at_a_time(starter: Model, starter_backend: LlamaBackend) -> None:
    prompts, server = asked(starter), Server(starter_backend)
    answers = server.answers(numbered(prompts, ANSWER))
    assert max(plan.decode_rows for plan in server.plans) == 8
    assert any(plan.decode_rows and plan.prefill_rows for plan in server.plans)
    check(starter, prompts, answers)


@pytest.mark.parametrize("together", [False, True])
def test_hybrid(hybrid: Model, hybrid_backend: LlamaBackend, together: bool) -> None:
    """Decode and prefill rows go in decodes of their own; prompts are cut into chunks."""
    prompts = [words(hybrid, seed, 20 + 13 * seed) for seed in range(10)]
    server = Server(hybrid_backend, max_chunk=48)
    requests = numbered(prompts, 10)
    if together:
        answers = server.answers(requests)
        assert any(len(plan.decodes) == 2 for plan in server.plans)
    else:
        answers = {}
        for each in requests:
            answers |= server.answers([each])
    check(hybrid, prompts, answers)


@pytest.mark.parametrize("together", [False, True])
def test_sliding_windows(gemma: Model, gemma_backend: LlamaBackend, together: bool) -> None:
    prompts = [words(gemma, seed, 12 + seed) for seed in range(4)]
    server = Server(gemma_backend)
    answers: dict[int, list[int]] = {}
    groups = [numbered(prompts, 8)] if together else [[each] for each in numbered(prompts, 8)]
    for group in groups:
        answers |= server.answers(group)
    check(gemma, prompts, answers)


# --- preemption ---


@pytest.mark.parametrize("name", ["starter", "qwen35"])
def test_preempted_and_computed_again(name: str, request: pytest.FixtureRequest) -> None:
    """Six answers grow beyond a pool of 256 cells; the youngest give way and are computed again, none notices."""
    path: Path = request.getfixturevalue(f"{name}_path")
    model: Model = request.getfixturevalue({"starter": "starter", "qwen35": "hybrid"}[name])
    prompts = [words(model, seed, 24) for seed in range(6)]
    with backend(path, context=256, parallel=6, n_batch=64, n_ubatch=64) as small:
        server = Server(small, max_chunk=64)
        answers = server.answers(numbered(prompts, 40))
    assert server.preemptions > 0
    check(model, prompts, answers)


# --- seeds ---

WARM = Sampling(temperature=0.8, presence_penalty=0.5, top_k=40, seed=7)
SLACK = {"llama": 0.4, "qwen35": 0.1}
"""By how much noise lets another token win: 0.04 and 0.00 were seen."""


@pytest.mark.parametrize("name", ["starter", "hybrid"])
def test_a_seed_draws_the_same_alone_and_beside_others(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    server = Server(request.getfixturevalue(f"{name}_backend"))
    prompts = asked(model)[:8] if name == "starter" else [words(model, seed, 16 + seed) for seed in range(8)]
    requests = numbered(prompts, 8, sampling=WARM)
    beside = server.answers(requests)
    alone = {key: answer for each in requests for key, answer in server.answers([each]).items()}
    for number, prompt in enumerate(prompts, start=1):
        for answers in (alone, beside):
            assert_drawn(model, prompt, answers[number], WARM, SLACK[model.architecture])
    # A draw that falls to the other side of a boundary starts another text, so most must go on together.
    assert sum(agreement(alone[number], beside[number]) for number in alone) >= 32


def test_a_preempted_sequence_draws_the_same_again(hybrid: Model, qwen35_path: Path) -> None:
    prompts = [words(hybrid, seed, 24) for seed in range(6)]
    with backend(qwen35_path, context=256, parallel=6, n_batch=64, n_ubatch=64) as small:
        server = Server(small, max_chunk=64)
        answers = server.answers(numbered(prompts, 40, sampling=WARM))
    assert server.preemptions > 0
    for number, prompt in enumerate(prompts, start=1):
        assert_drawn(hybrid, prompt, answers[number], WARM, SLACK["qwen35"])
    with pytest.raises(AssertionError, match="short of the winner"):
        assert_drawn(hybrid, prompts[0], answers[1], structs.replace(WARM, seed=8), SLACK["qwen35"])


def test_other_seeds_draw_others(hybrid: Model, hybrid_backend: LlamaBackend) -> None:
    prompt = words(hybrid, 1, 16)
    requests = [request(seed, prompt, 8, Sampling(temperature=0.8, seed=seed)) for seed in (1, 2, 3)]
    answers = Server(hybrid_backend).answers(requests)
    assert len({tuple(answer) for answer in answers.values()}) == 3


@pytest.mark.parametrize("name", ["starter_path", "qwen35_path"])
def test_streams(name: str, request: pytest.FixtureRequest) -> None:
    """Cells of their own for each slot: the same answers, in an equal part of the pool."""
    path: Path = request.getfixturevalue(name)
    with backend(path, context=1024, parallel=4, kv_layout="streams") as loaded:
        assert loaded.facts.context == 256
        model = loaded._model
        prompts = [words(model, seed, 30 + 20 * seed) for seed in range(6)]
        answers = Server(loaded).answers(numbered(prompts, 8))
        check(model, prompts, answers)
