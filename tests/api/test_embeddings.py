"""`POST /v1/embeddings`, through real sockets, with a real process that computes."""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from forgelm.llama.vocab import Vocabulary
from tests.api.beside import EMBEDDINGS, Beside, beside
from tests.bert_forward import Bert
from tests.embedders import Embedders
from tests.make_embedder import BERT

pytestmark = [pytest.mark.model, pytest.mark.server]

TEXTS = ["the cat sat on the mat", "Paris is the capital of France.", "a river", "walk"]
SAME = 2e-3
"""Of vectors of length 1: what else is in a decode changes roundings."""


@pytest.fixture(scope="module")
def server(embedders: Embedders) -> Iterator[Beside]:
    """BERT, pooled by its first token."""
    with beside(embedders.bert) as running:
        yield running


@pytest.fixture(scope="module")
def vocabulary(embedders: Embedders) -> Iterator[Vocabulary]:
    opened = Vocabulary.open(embedders.bert)
    yield opened
    opened.close()


def ids(vocabulary: Vocabulary, text: str) -> list[int]:
    return list(vocabulary.tokenize(text, add_special=True, parse_special=False))


def client_of(server: Beside) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0)


def test_one_text(server: Beside, vocabulary: Vocabulary) -> None:
    answer = server.embed(TEXTS[0]).json()
    expected = ids(vocabulary, TEXTS[0])
    assert answer["object"] == "list"
    assert answer["model"] == server.embedder.model_id
    assert answer["usage"] == {"prompt_tokens": len(expected), "total_tokens": len(expected)}
    (item,) = answer["data"]
    assert (item["object"], item["index"]) == ("embedding", 0)
    assert np.abs(np.array(item["embedding"]) - Bert().vector(expected, "cls")).max() < SAME


def test_several_texts_in_order(server: Beside, vocabulary: Vocabulary) -> None:
    reference = Bert()
    texts = [f"{text} {number}" for number in range(9) for text in TEXTS]
    found = np.array(server.vectors(texts))
    expected = np.stack([reference.vector(ids(vocabulary, text), "cls") for text in texts])
    assert np.abs(found - expected).max() < SAME


@pytest.mark.parametrize("several", [False, True])
def test_token_ids_are_taken_as_they_are(server: Beside, vocabulary: Vocabulary, several: bool) -> None:
    tokens = [ids(vocabulary, text) for text in (TEXTS if several else TEXTS[:1])]
    found = server.vectors(tokens if several else tokens[0])
    assert np.abs(np.array(found) - np.array(server.vectors(TEXTS[: len(tokens)]))).max() < SAME
    bare = server.embed(tokens[0][1:-1]).json()
    assert bare["usage"]["prompt_tokens"] == len(tokens[0]) - 2, "nothing is added"


def test_texts_and_token_ids_side_by_side(server: Beside, vocabulary: Vocabulary) -> None:
    first, second = server.vectors([TEXTS[0], ids(vocabulary, TEXTS[0])])
    assert np.abs(np.array(first) - np.array(second)).max() < SAME


def test_base64(server: Beside) -> None:
    (packed,) = server.vectors(TEXTS[0], encoding_format="base64")
    (plain,) = server.vectors(TEXTS[0], encoding_format="float")
    assert isinstance(packed, str)
    assert struct.unpack("<64f", base64.b64decode(packed)) == pytest.approx(plain, abs=1e-6)


def test_names_of_special_tokens_are_text(server: Beside) -> None:
    """`[SEP]` is five characters that somebody wrote, no token."""
    answer = server.embed("[SEP]").json()
    assert answer["usage"]["prompt_tokens"] > 3


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client(server: Beside, encoding: Any) -> None:
    """It asks for base64 unless told otherwise, and decodes that."""
    options = {} if encoding is None else {"encoding_format": encoding}
    with client_of(server) as client:
        answer = client.embeddings.create(model=server.embedder.model_id, input=TEXTS, user="somebody", **options)
    assert [item.index for item in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens > 4
    expected = server.vectors(TEXTS)
    for item, right in zip(answer.data, expected, strict=True):
        values = item.embedding
        if encoding == "base64":
            values = list(struct.unpack("<64f", base64.b64decode(str(values))))
        assert np.abs(np.array(values) - right).max() < SAME


def test_the_largest_request(server: Beside) -> None:
    """2048 texts, with another client's text in between."""
    texts = [f"the cat {number}" for number in range(2048)]
    found = np.array(server.vectors(texts))
    assert found.shape == (2048, 64)
    some = [0, 1, 1000, 2047]
    assert np.abs(found[some] - np.array(server.vectors([texts[index] for index in some]))).max() < SAME


def test_a_text_as_long_as_the_context(server: Beside) -> None:
    tokens = [2, *[7] * (BERT.context - 2), 3]
    assert len(server.vectors([tokens])[0]) == 64


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no input": ({}, "input", "invalid_value"),
    "null": ({"input": None}, "input", "invalid_value"),
    "nothing in it": ({"input": []}, "input", "invalid_value"),
    "empty": ({"input": ""}, "input", "invalid_value"),
    "one is empty": ({"input": ["a", ""]}, "input[1]", "invalid_value"),
    "one has no ids": ({"input": [[5], []]}, "input[1]", "invalid_value"),
    "mixed": ({"input": [5, "a"]}, "input", "invalid_value"),
    "an id that isn't there": ({"input": [5, 104]}, "input[1]", "invalid_value"),
    "a negative id": ({"input": [[5], [6, -1]]}, "input[1][1]", "invalid_value"),
    "a very large id": ({"input": [[10**30]]}, "input[0][0]", "invalid_value"),
    "a fraction": ({"input": [1.5]}, "input[0]", "invalid_value"),
    "too long": ({"input": ["a", "b", "c", "x" * 300]}, "input[3]", "context_length_exceeded"),
    "too long, alone": ({"input": "x" * 300}, "input", "context_length_exceeded"),
    "too many ids": ({"input": [7] * 97}, "input", "context_length_exceeded"),
    "too many": ({"input": ["a"] * 2049}, "input", "invalid_value"),
    "no such encoding": ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
    "no dimensions": ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
    "more dimensions": ({"input": "a", "dimensions": 65}, "dimensions", "invalid_value"),
    "fewer dimensions": ({"input": "a", "dimensions": 32}, "dimensions", "invalid_value"),
    "a model that is a number": ({"input": "a", "model": 5}, "model", "invalid_value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_field(server: Beside, case: str) -> None:
    body, param, code = REFUSED[case]
    answer = server.http.post(EMBEDDINGS, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    server.idle()


def test_both_counts_of_a_text_that_is_too_long_are_told(server: Beside) -> None:
    message = server.embed([7] * 97).json()["error"]["message"]
    assert "97 tokens" in message
    assert "96" in message


@pytest.mark.parametrize("body", [b"{", b'{"input": "\xff"}', b"[]", b'{"input": NaN}'])
def test_what_is_no_request(server: Beside, body: bytes) -> None:
    answer = server.http.post(EMBEDDINGS, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_value"


def test_names(server: Beside, embedders: Embedders) -> None:
    for name in (None, "", server.embedder.model_id, embedders.bert.name, embedders.bert.stem.upper()):
        assert server.embed("a", model=name).status_code == 200
    answer = server.embed("a", model="text-embedding-3-small")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"
    assert server.embedder.model_id in answer.json()["error"]["message"]


def test_without_a_model(embedders: Embedders) -> None:
    with beside() as server:
        for answer, flag in ((server.embed("a"), "--embedding-model"), (server.rank("a", ["b"]), "--rerank-model")):
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["code"] == "model_not_found"
            assert flag in error["message"]


def test_fewer_dimensions_where_the_model_was_trained_for_them(embedders: Embedders) -> None:
    for path, settings in ((embedders.bert, {"matryoshka": True}), (embedders.qwen, {})):
        with beside(path, settings=settings) as server:
            (whole,) = server.vectors(TEXTS[0])
            (full,) = server.vectors(TEXTS[0], dimensions=64)
            (part,) = server.vectors(TEXTS[0], dimensions=16)
            (packed,) = server.vectors(TEXTS[0], dimensions=16, encoding_format="base64")
            assert full == whole
            expected = np.array(whole[:16]) / np.linalg.norm(whole[:16])
            assert part == pytest.approx(expected.tolist(), abs=1e-6)
            assert struct.unpack("<16f", base64.b64decode(str(packed))) == pytest.approx(part, abs=1e-6)
            assert server.embed("a", dimensions=65).status_code == 400


def test_a_decoder_pooled_as_its_file_says(embedders: Embedders) -> None:
    """Its tokenizer puts an end token after each text, and that is what the vector is taken from."""
    with beside(embedders.qwen) as server:
        vocabulary = Vocabulary.open(embedders.qwen)
        tokens = ids(vocabulary, TEXTS[0])
        assert tokens[-1] == vocabulary.eos
        vocabulary.close()
        first, second = server.vectors([TEXTS[0], tokens])
        assert np.abs(np.array(first) - np.array(second)).max() < SAME
        assert server.embedder.facts is not None
        assert server.embedder.facts.pooling == "last"


def test_a_chat_model_with_a_pooling_asked_for(starter_path: Path) -> None:
    """Real weights: what means the same is near, what doesn't is farther away."""
    with beside(starter_path, settings={"pooling": "mean", "context": 512}) as server:
        one, other, far = np.array(
            server.vectors(["The cat sleeps on the sofa.", "A cat is sleeping on a couch.", "SELECT name FROM users;"])
        )
        assert one @ other > one @ far + 0.02
        assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
        assert server.embedder.context == 512
        assert server.embed("word " * 600).json()["error"]["code"] == "context_length_exceeded"
