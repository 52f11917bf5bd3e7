"""Choices, log-probabilities, grammars and the highest logits alone, with real models."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from forgelm.config import Cache
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Plan, Trim
from forgelm.ipc.messages import Budget, Constraint, Delta, Generate, Sampling
from forgelm.llama.model import Model
from tests.engine_model.drive import GREEDY, Server, backend, reference_rows, request

CACHE = Cache(sequences=10)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    # A model of random weights would fill its answer with white space.
    "x-guidance": {"whitespace_flexible": False},
}
JSON = Constraint(json.dumps({"grammars": [{"json_schema": SCHEMA}]}))
MODELS = ["starter_path", "qwen35_path"]


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def whole(path: Path) -> Iterator[LlamaBackend]:
    with backend(path, CACHE, parallel=4) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ranked(path: Path) -> Iterator[LlamaBackend]:
    with backend(path, CACHE, parallel=4, device_top_k="on") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    loaded = Model.load(path, n_gpu_layers=0)
    yield loaded
    loaded.close()


def said(deltas: Sequence[Delta], request_id: int, choice: int = 0) -> list[int]:
    return [token for delta in deltas if (delta.id, delta.choice) == (request_id, choice) for token in delta.tokens]


def prompt(model: Model, text: str) -> list[int]:
    return model.vocab.tokenize(text, add_special=True, parse_special=True).tolist()


def text_of(model: Model, tokens: Sequence[int]) -> str:
    return model.vocab.pieces_of(tokens).decode(errors="replace")


# --- the highest logits alone ---

CHAINS = {
    "greedy": GREEDY,
    "qwen": Sampling(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5, seed=5),
    "top-k": Sampling(temperature=1.3, top_k=40, min_p=0.02, frequency_penalty=0.4, seed=6),
    "whole row": Sampling(temperature=0.9, top_p=0.9, seed=7),
}


def test_a_ranked_slot_draws_what_a_whole_row_does(model: Model, whole: LlamaBackend, ranked: LlamaBackend) -> None:
    """One at a time: what is computed beside a sequence moves its logits a little."""
    assert ranked.whole_slots == 5
    assert whole.whole_slots is None
    ids = prompt(model, "The sea is deep and the sky is")
    for number, sampling in enumerate(CHAINS.values()):
        wanted = request(number + 1, ids, 24, sampling)
        answers = [said(Server(each, cache=CACHE).serve([wanted]), wanted.id) for each in (whole, ranked)]
        for each in (whole, ranked):
            each.run(_wipe_all(each))
        assert answers[0] == answers[1]


def test_requests_run_where_their_rows_are(model: Model, ranked: LlamaBackend) -> None:
    server = Server(ranked, cache=CACHE)
    ids = prompt(model, "Once upon a time there was")
    wanted = [request(number + 1, ids, 6, sampling) for number, sampling in enumerate(CHAINS.values())]
    server.serve(wanted)
    slots = {s.slot for plan in server.plans for decode in plan.decodes for s in decode.spans if s.draw}
    assert any(slot >= 5 for slot in slots)
    assert any(slot < 5 for slot in slots)
    whole_rows = {
        s.slot for plan in server.plans for d in plan.decodes for s in d.spans if s.draw and not s.draw.sampling.top_k
    }
    assert any(slot < 5 for slot in whole_rows)
    ranked.run(_wipe_all(ranked))


# --- log-probabilities ---


def test_logprobs_are_those_of_the_models_own_distribution(model: Model, whole: LlamaBackend) -> None:
    ids = prompt(model, "The capital of France is")
    wanted = request(1, ids, 12, Sampling(temperature=0.8, top_k=5, presence_penalty=1.0, seed=3), logprobs=4)
    deltas = Server(whole, cache=CACHE).serve([wanted])
    answer = said(deltas, 1)
    found = [each for delta in deltas for each in delta.logprobs]
    assert len(found) == len(answer)
    for row, token, entry in zip(reference_rows(model, ids, answer), answer, found, strict=True):
        scores = row.astype(np.float64)
        exact = scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())
        assert entry.logprob == pytest.approx(exact[token], abs=0.05)
        assert len(entry.top) == 4
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
        assert [value for _, value in entry.top] == pytest.approx(sorted(exact, reverse=True)[:4], abs=0.05)
    whole.run(_wipe_all(whole))


# --- choices ---


def test_choices_cost_one_prefill_and_differ(model: Model, whole: LlamaBackend) -> None:
    ids = prompt(model, "Here is a long story about a cat, a dog and their house by the sea. " * 8)
    server = Server(whole, cache=CACHE)
    deltas = server.serve([request(1, ids, 8, Sampling(seed=11), choices=4)])
    answers = [tuple(said(deltas, 1, choice)) for choice in range(4)]
    assert len(set(answers)) == 4
    assert all(len(answer) == 8 for answer in answers)
    assert sum(plan.prefill_rows + plan.decode_rows for plan in server.plans) == len(ids) + 3 + 4 * 7
    whole.run(_wipe_all(whole))


# --- grammars ---


@pytest.mark.parametrize("logprobs", [-1, 2])
def test_an_answer_follows_its_schema(model: Model, whole: LlamaBackend, logprobs: int) -> None:
    ids = prompt(model, "Describe a person as JSON: ")
    requests = [
        request(number, ids, 120, sampling, constraint=JSON, logprobs=logprobs, stop_tokens=model.vocab.end_tokens())
        for number, sampling in enumerate([GREEDY, Sampling(seed=1), Sampling(temperature=1.5, seed=2)], 1)
    ]
    server = Server(whole, cache=CACHE)
    deltas = server.serve(requests)
    ends = set(model.vocab.end_tokens())
    for each in requests:
        answer = [token for token in said(deltas, each.id) if token not in ends]
        value = json.loads(text_of(model, answer))
        assert set(value) == {"name", "age"}
        assert 0 <= value["age"] <= 99
    finishes = [delta.finish for delta in deltas if delta.finish]
    assert finishes == ["stop"] * 3
    if logprobs < 0:
        # What the schema forces isn't drawn.
        assert any(len(delta.tokens) > 1 for delta in deltas)
    whole.run(_wipe_all(whole))


def test_a_broken_grammar_ends_its_request_alone(model: Model, whole: LlamaBackend) -> None:
    ids = prompt(model, "Hello")
    requests: list[Generate] = [
        request(1, ids, 20, constraint=Constraint("start: nothing_there")),
        request(2, ids, 20),
    ]
    endings = {delta.id: delta for delta in Server(whole, cache=CACHE).serve(requests) if delta.finish}
    assert endings[1].finish == "refused"
    assert "nothing_there" in endings[1].error
    assert endings[2].finish == "length"
    whole.run(_wipe_all(whole))


def test_thinking_is_closed_and_the_grammar_begins_there(model: Model, whole: LlamaBackend) -> None:
    """Any token will do as a mark: here the one of a semicolon."""
    [mark] = model.vocab.tokenize(";", add_special=False, parse_special=False).tolist()[-1:]
    closing = (*prompt(model, " Well")[-1:], mark)
    constraint = Constraint(f'start: <[{mark}]> ("yes" | "no")', triggers=(mark,))
    wanted = request(1, prompt(model, "Is it?"), 60, GREEDY, constraint=constraint, budget=Budget(5, (mark,), closing))
    answer = said(Server(whole, cache=CACHE).serve([wanted]), 1)
    assert text_of(model, answer).rpartition(";")[2] in ("yes", "no")
    whole.run(_wipe_all(whole))


def _wipe_all(each: LlamaBackend) -> Plan:
    return Plan(tuple(Trim(slot) for slot in range(each.facts.slots + CACHE.sequences)))
