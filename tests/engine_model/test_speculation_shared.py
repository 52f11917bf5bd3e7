"""Guesses on a real model whose sequences share one pool of cells: the same text as without.

Alone, texts are compared token for token. Beside others the cells that a rollback frees are taken by anybody, and their
order decides between candidates that are almost equal: there the reference is the judge (see `assert_greedy`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from forgelm.config import Cache
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Restore
from forgelm.errors import ModelError
from forgelm.ipc.messages import Budget, Constraint, Sampling
from forgelm.ipc.start import Drafting
from forgelm.llama.context import Logits
from forgelm.llama.model import Model
from tests import models
from tests.engine_model.drive import Server, backend, reference_rows, request
from tests.engine_model.guessed import CACHE, WARM, GuessingServer, both, make_rows_cheap, said, served
from tests.llama.drive import assert_greedy

pytestmark = pytest.mark.model

SAYING = "A journey of a thousand miles begins with a single step. "
TEXTS = (
    SAYING * 2 + "A journey",
    "Here are the days: Monday, Tuesday, Wednesday,",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "capital of": {"enum": ["France", "Spain"]}},
    "required": ["city", "capital of"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def tokens_of(model: Model, text: str) -> list[int]:
    return [int(token) for token in model.vocab.tokenize(text, add_special=True, parse_special=True)]


@pytest.fixture(scope="module")
def drafting() -> Drafting:
    """A draft that is often right, and n-grams where they have found anything."""
    return Drafting(ngram=True, draft=str(models.starter_low()), depth=4, adaptive=False)


@pytest.fixture(scope="module")
def loaded(starter_path: Path, drafting: Drafting) -> Iterator[LlamaBackend]:
    with backend(starter_path, CACHE, drafting=drafting) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(starter: Model) -> list[list[int]]:
    return [tokens_of(starter, text) for text in TEXTS]


def judge(model: Model, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
    ties = sum(assert_greedy(model, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))
    assert ties <= 0.1 * sum(map(len, answers))


# --- greedy ---


def test_one_at_a_time(
    loaded: LlamaBackend, prompts: list[list[int]], drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both drafters, with and without the controller."""
    asked = [request(number, prompt, 20) for number, prompt in enumerate(prompts)]
    off, on, server = both(loaded, asked, drafting, together=False)
    assert on == off
    assert {each.drafter for each in server.verifications if each.accepted} == {"ngram", "draft"}
    make_rows_cheap(monkeypatch)
    adaptive = GuessingServer(loaded, drafting=Drafting(ngram=True, draft=drafting.draft))
    assert served(adaptive, asked, together=False) == off
    assert adaptive.accepted > 8


def test_eight_at_a_time(starter: Model, loaded: LlamaBackend, drafting: Drafting) -> None:
    prompts = [tokens_of(starter, f"{number}. {SAYING}{SAYING[: 20 + 3 * number]}") for number in range(8)]
    server = GuessingServer(loaded, drafting=drafting)
    answers = served(server, [request(number, prompt, 14) for number, prompt in enumerate(prompts)])
    assert server.accepted > 20
    said_to = [answers[number, 0] for number in range(8)]
    judge(starter, prompts, said_to)
    # The judge would have noticed one wrong token, were it the second best.
    *_, row = reference_rows(starter, prompts[3], said_to[3][:8])
    spoilt = [*said_to[3][:7], int(np.argsort(row)[-2]), *said_to[3][8:]]
    with pytest.raises(AssertionError, match="token 7"):
        assert_greedy(starter, prompts[3], spoilt)


def test_preempted(starter: Model, starter_path: Path, drafting: Drafting) -> None:
    """The draft's memory is saved, shared and lost with the target's."""
    prompts = [tokens_of(starter, f"{number}: {SAYING * 4}{SAYING[:10]}") for number in range(4)]
    with backend(starter_path, CACHE, drafting=drafting, context=256, parallel=4) as small:
        server = GuessingServer(small, drafting=drafting, cache=CACHE, target_itl_ms=60_000)
        answers = served(server, [request(number, prompt, 24) for number, prompt in enumerate(prompts)])
    assert server.preemptions
    assert server.accepted > 20
    judge(starter, prompts, [answers[number, 0] for number in range(4)])


def test_chats_go_on(starter: Model, starter_path: Path, drafting: Drafting) -> None:
    """More of them than slots: what was guessed with comes back from RAM, and guesses go on being right."""
    cache = Cache(sequences=1)
    with backend(starter_path, cache, drafting=drafting, parallel=2) as small:
        server = GuessingServer(small, drafting=drafting, cache=cache)
        prompts = [tokens_of(starter, f"Chat {number}. {SAYING}{SAYING[:10]}") for number in range(5)]
        for turn in range(2):
            asked = [request(10 * turn + number, prompt, 10) for number, prompt in enumerate(prompts)]
            accepted = server.accepted
            answers = said(server.serve(asked))
            judge(starter, prompts, [answers[each.id, 0] for each in asked])
            assert server.accepted > accepted + 10
            if turn:
                assert all(server.cached[each.id] > 15 for each in asked)
            prompts = [
                [*prompt, *answers[each.id, 0], *tokens_of(starter, f" And so: {SAYING[:10]}")]
                for each, prompt in zip(asked, prompts, strict=True)
            ]
    assert server.operations(Restore)


# --- what requests ask for ---


def test_seeds_choices_and_log_probabilities(
    loaded: LlamaBackend, prompts: list[list[int]], drafting: Drafting
) -> None:
    asked = [request(number, prompt, 16, WARM, logprobs=3) for number, prompt in enumerate(prompts)]
    plain = Server(loaded)
    off = served(plain, asked, together=False)
    server = GuessingServer(loaded, drafting=drafting)
    assert served(server, asked, together=False) == off
    assert server.accepted > 4
    for number in range(len(prompts)):
        one, other = (
            [entry.logprob for delta in each.deltas if delta.id == number for entry in delta.logprobs]
            for each in (plain, server)
        )
        assert len(one) == 16
        assert one == pytest.approx(other, abs=0.02)


def test_a_grammar_and_a_bound_on_thinking(starter: Model, loaded: LlamaBackend, drafting: Drafting) -> None:
    constraint = Constraint(json.dumps({"grammars": [{"json_schema": SCHEMA}]}))
    ends = starter.vocab.end_tokens()
    prompt = tokens_of(
        starter, '{"city": "Madrid", "capital of": "Spain"}\n{"city": "Paris", "capital of": "France"}\n'
    )
    closing = tuple(tokens_of(starter, " So"))
    asked = [
        request(1, prompt, 40, constraint=constraint, stop_tokens=ends),
        request(2, prompt, 40, WARM, constraint=constraint, stop_tokens=ends),
        request(3, prompt, 40, constraint=constraint, stop_tokens=ends, logprobs=1),
        request(4, prompt, 16, budget=Budget(7, (0,), closing)),
        request(5, prompt, 16, min_tokens=12, stop_tokens=(prompt[0], *ends)),
    ]
    off, on, server = both(loaded, asked, drafting, together=False)
    assert on == off
    for number in (1, 2, 3):
        answer = [token for token in on[number, 0] if token not in ends]
        assert set(json.loads(starter.vocab.pieces_of(answer))) == {"city", "capital of"}
    assert tuple(on[4, 0][7 : 7 + len(closing)]) == closing
    assert len(on[5, 0]) >= 12
    assert server.accepted > 10
    assert any(len(delta.tokens) > 2 for delta in server.deltas if delta.id == 1), "some tokens were forced"


# --- the distribution ---

SEEDS = 128
BUCKETS = 12
FAR = 32.9
"""χ² with 12 degrees of freedom exceeds this once in a thousand times."""


def squares(one: Sequence[int], other: Sequence[int]) -> float:
    """χ² of two samples of equal size over the likeliest tokens and the rest, with `BUCKETS` degrees of freedom."""
    likeliest = [token for token, _ in Counter([*one, *other]).most_common(BUCKETS)]
    pairs = [(one.count(token), other.count(token)) for token in likeliest]
    pairs.append((len(one) - sum(a for a, _ in pairs), len(other) - sum(b for _, b in pairs)))
    return sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)


def misfit(sample: Sequence[int], row: Logits) -> float:
    """χ² of a sample against the softmax of `row`, over the likeliest tokens and the rest."""
    weights = np.exp(row.astype(np.float64) - row.max())
    expected = len(sample) * weights / weights.sum()
    likeliest = np.argsort(row)[-BUCKETS:].tolist()
    pairs = [(sample.count(token), expected[token]) for token in likeliest]
    pairs.append((len(sample) - sum(a for a, _ in pairs), len(sample) - sum(b for _, b in pairs)))
    return float(sum((a - b) ** 2 / b for a, b in pairs))


def test_samples_with_guesses_are_of_the_targets_distribution(
    starter: Model, loaded: LlamaBackend, drafting: Drafting
) -> None:
    """Other seeds on both sides: with the same ones the texts are equal anyhow."""
    prompt = tokens_of(starter, "Once upon a time there")
    draft_only = Drafting(draft=drafting.draft, depth=4, adaptive=False)

    def sample(server: Server, first: int) -> list[list[int]]:
        asked = [request(seed, prompt, 3, Sampling(seed=seed)) for seed in range(first, first + SEEDS)]
        answers = served(server, asked)
        return [answers[each.id, 0] for each in asked]

    server = GuessingServer(loaded, cache=CACHE, drafting=draft_only)
    on = sample(server, 0)
    off = sample(Server(loaded, cache=CACHE), SEEDS)
    assert 0.2 * server.drafted < server.accepted < 0.9 * server.drafted
    for place in (1, 2):
        assert squares([answer[place] for answer in on], [answer[place] for answer in off]) < FAR
    # Exactly, after the likeliest first token; and the measure would tell a distribution that is a little warmer.
    [(first, _)] = Counter(answer[0] for answer in on).most_common(1)
    seconds = [answer[1] for answer in on if answer[0] == first]
    *_, row = reference_rows(starter, prompt, [first, seconds[0]])
    assert misfit(seconds, row) < FAR < misfit(seconds, row / 1.4)


# --- refused at the start ---


def test_a_draft_of_another_vocabulary_is_refused(starter_path: Path, gemma_path: Path) -> None:
    with (
        pytest.raises(ModelError, match="can't draft for this model") as refusal,
        backend(starter_path, drafting=Drafting(draft=str(gemma_path), depth=2)),
    ):
        pass
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "head", "reason"),
    [
        (models.qwen35_apart, models.qwen35_apart, "without a next-token head"),
        (models.starter, models.starter, "without a next-token head"),
        (models.starter, models.qwen35, "of another width"),
    ],
)
def test_a_head_that_isnt_there_is_refused(target: Callable[[], Path], head: Callable[[], Path], reason: str) -> None:
    """In the model's own file or in another."""
    drafting = Drafting(mtp=str(head()), depth=2, rollback=2)
    with pytest.raises(ModelError, match=reason) as refusal, backend(target(), drafting=drafting):
        pass
    assert "\n" not in str(refusal.value)
