"""OpenAI's routes: chat and text completions, and the models."""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import Request, get, post
from litestar.exceptions import InternalServerException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp

from forgelm.api.answer import Answer
from forgelm.api.fields import require_drafter
from forgelm.api.generate import Generation
from forgelm.api.prepare import Prepared
from forgelm.api.requests import STRUCTURED
from forgelm.api.service import Service
from forgelm.api.wire import Model, ModelList
from forgelm.errors import InvalidRequest, ModelNotFound

THREAD_BYTES = 16 * 1024
"""Bodies larger than this are prepared on a worker thread: a 32k-token prompt takes tens of milliseconds."""

SLOW = tuple(f'"{name}"'.encode() for name in (*STRUCTURED, "tools", "dry_multiplier"))
"""What has grammars to compile goes there as well, milliseconds each, up to 50; and what needs the whole vocabulary."""


async def _read(request: Request[Any, Any, Any]) -> bytes:
    try:
        return await request.body()
    except InternalServerException:
        # Litestar's word for a client that left while it sent its request; no failure of ours, and nobody reads this.
        raise InvalidRequest("the client left before its request was complete") from None


def openai_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""

    async def answer(request: Request[Any, Any, Any], prepare: Callable[[bytes, int], Prepared]) -> ASGIApp:
        body = await _read(request)
        service.client.require_ready()
        if len(body) > THREAD_BYTES or any(name in body for name in SLOW):
            prepared = await asyncio.to_thread(prepare, body, service.context)
        else:
            prepared = prepare(body, service.context)
        # An engine that is just gone has none: its absence is told as such.
        if service.drafters is not None:
            require_drafter(prepared.job.drafting, service.drafters)
        pieces = service.vocabulary.pieces if prepared.reading.plain else service.marked_pieces
        return Answer(Generation(prepared, service.client, pieces), service.model_id, service.vocabulary)

    @post("/v1/chat/completions")
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        return await answer(request, service.preparer.chat)

    @post("/v1/completions")
    async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
        return await answer(request, service.preparer.completion)

    def model() -> Model:
        return Model(service.model_id, service.created, service.context, max_model_len=service.context)

    @get("/v1/models")
    async def models() -> ModelList:
        return ModelList([model()])

    @get("/v1/models/{model_id:str}")
    async def one_model(model_id: FromPath[str]) -> Model:
        if model_id != service.model_id:
            raise ModelNotFound(f"this server serves {service.model_id!r}, not {model_id[:80]!r}", param="model")
        return model()

    return [chat_completions, completions, models, one_model]
