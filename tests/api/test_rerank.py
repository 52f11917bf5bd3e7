"""`POST /v1/rerank`, through real sockets, with a real process that computes."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from forgelm.llama.vocab import Vocabulary
from forgelm.text.pairs import Pairs
from tests.api.beside import RERANK, Beside, beside
from tests.bert_forward import Bert
from tests.embedders import Embedders

pytestmark = [pytest.mark.model, pytest.mark.server]

QUERY = "what is the capital of France?"
DOCUMENTS = ["a cat sat on the mat", "Paris is the capital.", "the river", "", "walk 12"]


@pytest.fixture(scope="module")
def server(embedders: Embedders) -> Iterator[Beside]:
    """A cross-encoder."""
    with beside(rerank=embedders.ranker) as running:
        yield running


@pytest.fixture(scope="module")
def expected(embedders: Embedders) -> Iterator[list[float]]:
    """The scores of `DOCUMENTS`, computed in NumPy."""
    vocabulary, reference = Vocabulary.open(embedders.ranker), Bert(labels=1)
    pairs = Pairs(vocabulary)
    logits = [reference.score(pairs.tokens(QUERY, document)) for document in DOCUMENTS]
    yield [1 / (1 + math.exp(-logit)) for logit in logits]
    vocabulary.close()


def test_documents_by_relevance(server: Beside, expected: list[float]) -> None:
    answer = server.rank(QUERY, DOCUMENTS).json()
    assert answer["model"] == server.models["rerank"].model_id
    assert answer["object"] == "list"
    results = answer["results"]
    scores = {each["index"]: each["relevance_score"] for each in results}
    assert [scores[index] for index in range(5)] == pytest.approx(expected, abs=0.01)
    assert [each["relevance_score"] for each in results] == sorted(scores.values(), reverse=True)
    assert [each["index"] for each in results] == sorted(range(5), key=lambda index: -expected[index])
    assert all(each.keys() == {"index", "relevance_score"} for each in results)


def test_usage_counts_every_pair(server: Beside, embedders: Embedders) -> None:
    vocabulary = Vocabulary.open(embedders.ranker)
    pairs = Pairs(vocabulary)
    tokens = sum(len(pairs.tokens(QUERY, document)) for document in DOCUMENTS)
    vocabulary.close()
    assert server.rank(QUERY, DOCUMENTS).json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_the_first_few_with_their_texts(server: Beside) -> None:
    every = server.rank(QUERY, DOCUMENTS).json()["results"]
    shaped: list[Any] = [{"text": document} if index % 2 else document for index, document in enumerate(DOCUMENTS)]
    few = server.rank(QUERY, shaped, top_n=2, return_documents=True).json()["results"]
    assert [each["index"] for each in few] == [each["index"] for each in every[:2]]
    assert [each["document"] for each in few] == [{"text": DOCUMENTS[each["index"]]} for each in few]
    assert len(server.rank(QUERY, DOCUMENTS, top_n=50).json()["results"]) == 5


def test_equal_documents_keep_their_order(server: Beside) -> None:
    """Each text is computed the same way here: 8 in one decode, all equal."""
    results = server.rank(QUERY, ["the river"] * 3).json()["results"]
    assert [each["index"] for each in results] == [0, 1, 2]


def test_yes_and_no(embedders: Embedders) -> None:
    """A decoder's score is the probability of yes, as llama.cpp gives it."""
    with beside(rerank=embedders.qwen_ranker) as server:
        results = server.rank(QUERY, DOCUMENTS).json()["results"]
        scores = {each["index"]: each["relevance_score"] for each in results}
        facts = server.models["rerank"].facts
        assert facts is not None
        assert facts.score == "probability"
        assert all(0 <= score <= 1 for score in scores.values())
        assert max(scores.values()) - min(scores.values()) > 0.01
        again = server.rank(QUERY, DOCUMENTS[1:2]).json()["results"][0]["relevance_score"]
        assert again == pytest.approx(scores[1], abs=0.01)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no query": ({"documents": ["a"]}, "query", "invalid_value"),
    "an empty query": ({"query": "", "documents": ["a"]}, "query", "invalid_value"),
    "no documents": ({"query": "a"}, "documents", "invalid_value"),
    "none in it": ({"query": "a", "documents": []}, "documents", "invalid_value"),
    "too many": ({"query": "a", "documents": ["a"] * 2049}, "documents", "invalid_value"),
    "not text": ({"query": "a", "documents": ["a", 5]}, "documents[1]", "invalid_value"),
    "no text": ({"query": "a", "documents": [{"title": "a"}]}, "documents[0].text", "invalid_value"),
    "top_n of 0": ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "invalid_value"),
    "too long": ({"query": "a", "documents": ["a", "x" * 93, "b"]}, "documents[1]", "context_length_exceeded"),
    "too long a query": ({"query": "x" * 100, "documents": ["a"]}, "documents[0]", "context_length_exceeded"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_field(server: Beside, case: str) -> None:
    body, param, code = REFUSED[case]
    answer = server.http.post(RERANK, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    server.idle("rerank")


def test_names(server: Beside) -> None:
    assert server.rank("a", ["b"], model=server.models["rerank"].model_id).status_code == 200
    answer = server.rank("a", ["b"], model="rerank-english-v3.0")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
