"""What embedding and rerank requests ask for in JSON, checked, and as the token ids that the side process computes.

Names are OpenAI's for embeddings; those of rerank requests are Jina's and Cohere's. Fields that are not named here are
ignored.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from forgelm.errors import InvalidRequest
from forgelm.ipc.envelope import decode_problem
from forgelm.llama.vocab import Vocabulary
from forgelm.text.pairs import Pairs

MAX_TEXTS = 2048
"""Texts of one request, OpenAI's own limit."""
MATRYOSHKA = ("gemma-embedding", "jina-bert-v3", "qwen3")
"""Architectures whose embedding models were trained so that the first dimensions stand for themselves."""

Request = TypeVar("Request")


class TextTooLong(InvalidRequest):
    """A text has more tokens than the model reads at once; nothing is cut off in silence."""

    code = "context_length_exceeded"


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/embeddings`."""

    model: str | None = None
    input: str | list[str | int | list[int]]
    """Text or token ids, or several of those in a list."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """The first so many, scaled to length 1 again; only where the model was trained for that."""


class DocumentText(msgspec.Struct, frozen=True):
    """A document in Cohere's older form."""

    text: str


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/rerank`."""

    model: str | None = None
    query: str
    documents: list[str | DocumentText]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class Given(msgspec.Struct, frozen=True):
    """One text as the client sent it."""

    value: str | list[int]
    param: str
    """Where in the request."""


_embedding = msgspec.json.Decoder(EmbeddingRequest).decode
_rerank = msgspec.json.Decoder(RerankRequest).decode


def decode_embedding(body: bytes) -> tuple[EmbeddingRequest, list[Given]]:
    """A request for embeddings and its texts. Raises `InvalidRequest` naming the field."""
    request = _decode(_embedding, body)
    given = _given(request.input)
    _check_number(len(given), "input")
    for each in given:
        if not each.value:
            raise InvalidRequest(f"{each.param} is empty", param=each.param)
    return request, given


def decode_rerank(body: bytes) -> RerankRequest:
    """A rerank request. Raises `InvalidRequest` naming the field."""
    request = _decode(_rerank, body)
    _check_number(len(request.documents), "documents")
    if not request.query:
        raise InvalidRequest("query is empty", param="query")
    return request


def text_tokens(vocabulary: Vocabulary, given: Sequence[Given], context: int) -> list[bytes]:
    """Token ids of each text, little-endian int32, with the special tokens that the model wants around a text.

    Ids that a client sent are taken as they are. Raises `InvalidRequest` naming the text at fault.
    """
    return [_checked(_tokens(vocabulary, each), context, each.param) for each in given]


def pair_tokens(pairs: Pairs, request: RerankRequest, context: int) -> list[bytes]:
    """Token ids of the query with each document. Raises `InvalidRequest` naming the document at fault."""
    return [
        _checked(pairs.tokens(request.query, text), context, f"documents[{index}]", "with the query, ")
        for index, text in enumerate(request.texts)
    ]


def asked_dimensions(request: EmbeddingRequest, dimensions: int, architecture: str, *, matryoshka: bool) -> int:
    """How many numbers of each vector are wanted. Raises `InvalidRequest` for more than there are, and for fewer of a
    model whose first ones mean nothing by themselves."""
    asked = request.dimensions or dimensions
    if asked > dimensions:
        raise InvalidRequest(f"the model's vectors have {dimensions} dimensions, not {asked}", param="dimensions")
    if asked < dimensions and not matryoshka and architecture not in MATRYOSHKA:
        raise InvalidRequest(
            f"the model's vectors have {dimensions} dimensions, and the first {asked} mean something only if it was "
            "trained for that; if it was, say so with `matryoshka = true` in the profile's [embedding]",
            param="dimensions",
        )
    return asked


def _decode(decoder: Callable[[bytes], Request], body: bytes) -> Request:
    try:
        return decoder(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise decode_problem(error, body) from None


def _given(value: str | list[str | int | list[int]]) -> list[Given]:
    if isinstance(value, str):
        return [Given(value, "input")]
    ids = [each for each in value if isinstance(each, int)]
    if ids and len(ids) == len(value):
        return [Given(ids, "input")]
    if ids:
        raise InvalidRequest(
            "an input is text or a list of token ids, and several inputs are a list of those: these are mixed",
            param="input",
        )
    return [Given(each, f"input[{index}]") for index, each in enumerate(value) if not isinstance(each, int)]


def _check_number(number: int, param: str) -> None:
    if not number:
        raise InvalidRequest(f"{param} is empty", param=param)
    if number > MAX_TEXTS:
        raise InvalidRequest(f"{param} has {number} entries; at most {MAX_TEXTS} are taken at once", param=param)


def _tokens(vocabulary: Vocabulary, given: Given) -> Sequence[int]:
    if isinstance(given.value, str):
        return vocabulary.tokenize(given.value, add_special=True, parse_special=False)
    for index, token in enumerate(given.value):
        if not 0 <= token < vocabulary.size:
            raise InvalidRequest(
                f"token {str(token)[:20]} is not in 0 … {vocabulary.size - 1}", param=f"{given.param}[{index}]"
            )
    return given.value


def _checked(tokens: Sequence[int], context: int, param: str, why: str = "") -> bytes:
    if not tokens:
        raise InvalidRequest(f"{param} holds nothing that the model's vocabulary knows", param=param)
    if len(tokens) > context:
        raise TextTooLong(
            f"{param} has {why}{len(tokens)} tokens, and this model reads at most {context} at once: shorten it",
            param=param,
        )
    return array("i", tokens).tobytes()
