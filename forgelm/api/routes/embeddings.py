"""The routes of the models beside the chat model: embeddings as OpenAI has them, reranking as Jina and Cohere do."""

import asyncio
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.exceptions import InternalServerException
from litestar.handlers import HTTPRouteHandler
from msgspec import UNSET, UnsetType

from forgelm.api.access import CLIENT_LEFT, Access, Details, access_of
from forgelm.api.account import asked
from forgelm.api.embeddings import Computed, SideModel, SideText
from forgelm.api.named import left
from forgelm.api.side_requests import (
    EmbeddingRequest,
    RerankRequest,
    asked_dimensions,
    decode_embedding,
    decode_rerank,
    pair_tokens,
    text_tokens,
)
from forgelm.errors import ClientLeft, ModelNotFound
from forgelm.ipc.embeddings import EmbedderFacts


class SideUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct):
    index: int
    embedding: list[float] | str
    """Or, as base64, little-endian float32."""
    object: str = "embedding"


class EmbeddingList(msgspec.Struct):
    data: list[EmbeddingItem]
    model: str
    usage: SideUsage
    object: str = "list"


class DocumentBody(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct):
    index: int
    """Of the document in the request."""
    relevance_score: float
    """0 … 1."""
    document: DocumentBody | UnsetType = UNSET


class Ranking(msgspec.Struct):
    results: list[Ranked]
    """The most relevant one first."""
    model: str
    usage: SideUsage
    object: str = "list"


def side_routes(embedder: SideModel | None, reranker: SideModel | None) -> list[HTTPRouteHandler]:
    """The handlers, bound to the models; where one is missing, its route says what to do."""

    async def embed(body: bytes, access: Access) -> bytes:
        model = _required(embedder, "embedding")
        request, given = await asyncio.to_thread(decode_embedding, body)
        model.require_name(request.model or "")

        def prepare(text: SideText, facts: EmbedderFacts) -> list[bytes]:
            asked_dimensions(request, facts.dimensions, facts.architecture, matryoshka=model.matryoshka)
            return text_tokens(text.vocabulary, given, facts.context)

        computed = await model.compute(prepare, access.id)
        access.details = _account(body, access, computed, model.model_id)
        return await asyncio.to_thread(_embeddings, request, computed, model.model_id)

    async def rank(body: bytes, access: Access) -> bytes:
        model = _required(reranker, "rerank")
        request = await asyncio.to_thread(decode_rerank, body)
        model.require_name(request.model or "")

        def prepare(text: SideText, facts: EmbedderFacts) -> list[bytes]:
            return pair_tokens(text.pairs, request, facts.context)

        computed = await model.compute(prepare, access.id)
        access.details = _account(body, access, computed, model.model_id)
        return await asyncio.to_thread(_ranking, request, computed, model.model_id)

    @post("/v1/embeddings", status_code=200)
    async def embeddings(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await _while_connected(request, embed)

    @post("/v1/rerank", status_code=200)
    async def rerank(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await _while_connected(request, rank)

    return [embeddings, rerank]


async def _while_connected(
    request: Request[Any, Any, Any], answer: Callable[[bytes, Access], Coroutine[Any, Any, bytes]]
) -> Response[bytes]:
    """What `answer` makes of the body; it is cancelled when the client leaves."""
    try:
        body = await request.body()
    except InternalServerException:
        # Litestar's word for a client that left while it sent its request; no failure of ours, and nobody reads this.
        raise ClientLeft("the client left before its request was complete") from None
    work = asyncio.create_task(answer(body, access_of(request.scope)))
    watcher = asyncio.create_task(left(request))
    try:
        await asyncio.wait((work, watcher), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return Response(work.result(), media_type=MediaType.JSON)
        return Response(b"", status_code=CLIENT_LEFT)
    finally:
        for task in (watcher, work):
            task.cancel()


def _account(body: bytes, access: Access, computed: Computed, model: str) -> Details:
    """What the request's line in the log says of it."""
    said: dict[str, Any] = {"model": model, "prompt_tokens": computed.tokens, "texts": len(computed.vectors)}
    if access.prompts:
        said["prompt"] = asked(body)
    return lambda: said


def _required(model: SideModel | None, kind: str) -> SideModel:
    """The model, if there is one. Raises `ModelNotFound`."""
    if model is None:
        raise ModelNotFound(
            f"this server has no {kind} model: start it with `--{kind}-model PATH`, or name one as `model` in the "
            f"profile's [{kind}]",
            param="model",
        )
    return model


def _embeddings(request: EmbeddingRequest, computed: Computed, model: str) -> bytes:
    size = request.dimensions or computed.facts.dimensions
    encoded = request.encoding_format == "base64"
    items = [EmbeddingItem(index, _vector(each, size, encoded=encoded)) for index, each in enumerate(computed.vectors)]
    return msgspec.json.encode(EmbeddingList(items, model, SideUsage(computed.tokens, computed.tokens)))


def _vector(data: bytes, size: int, *, encoded: bool) -> list[float] | str:
    """The first `size` numbers of a vector (little-endian float32), as long as 1."""
    if size < len(data) // 4:
        numbers = struct.unpack_from(f"<{size}f", data)
        length = math.hypot(*numbers) or 1.0
        data = struct.pack(f"<{size}f", *(number / length for number in numbers))
    return b64encode(data).decode() if encoded else list(struct.unpack(f"<{size}f", data))


def _ranking(request: RerankRequest, computed: Computed, model: str) -> bytes:
    scores = [struct.unpack_from("<f", each)[0] for each in computed.vectors]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    texts = request.texts if request.return_documents else []
    results = [
        Ranked(index, _relevance(scores[index], computed.facts), DocumentBody(texts[index]) if texts else UNSET)
        for index in order
    ]
    return msgspec.json.encode(Ranking(results, model, SideUsage(computed.tokens, computed.tokens)))


def _relevance(score: float, facts: EmbedderFacts) -> float:
    """A score as a number from 0 to 1, as Jina and Cohere give it: cross-encoders are trained to give its logit."""
    if facts.score == "probability":
        return score
    # The other way round e^x would overflow.
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
