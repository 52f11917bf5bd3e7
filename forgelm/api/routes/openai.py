"""OpenAI's routes: chat and text completions."""

from collections.abc import Callable
from functools import partial
from typing import Any

from litestar import Request, post
from litestar.exceptions import InternalServerException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from forgelm.api.access import access_of
from forgelm.api.account import account, asked, told
from forgelm.api.answer import Answer
from forgelm.api.fields import require_drafter
from forgelm.api.generate import Generation
from forgelm.api.mailbox import Caller
from forgelm.api.named import asked_model, left
from forgelm.api.prepare import Prepared, Preparer
from forgelm.api.requests import STRUCTURED
from forgelm.api.served import Served
from forgelm.api.service import Service
from forgelm.errors import ClientLeft

Choose = Callable[[Preparer], Callable[[bytes, int], Prepared]]

THREAD_BYTES = 16 * 1024
"""Bodies larger than this are prepared on a worker thread: a 32k-token prompt takes tens of milliseconds."""

SLOW = tuple(f'"{name}"'.encode() for name in (*STRUCTURED, "tools", "dry_multiplier"))
"""What has grammars to compile goes there as well, milliseconds each, up to 50; and what needs the whole vocabulary."""


async def _read(request: Request[Any, Any, Any]) -> bytes:
    try:
        return await request.body()
    except InternalServerException:
        # Litestar's word for a client that left while it sent its request; no failure of ours, and nobody reads this.
        raise ClientLeft("the client left before its request was complete") from None


def openai_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""

    async def answer(request: Request[Any, Any, Any], choose: Choose) -> ASGIApp:
        access = access_of(request.scope)
        body = await _read(request)
        if access.prompts:
            access.details = lambda: {"prompt": asked(body)}
        name = asked_model(body)
        served = service.switcher.try_lease(name)
        if served is None:
            service.require_begun()
            served = await service.switcher.lease(name, partial(left, request))
        try:
            service.client.require_ready()
            prepared = await _prepared(body, served, choose)
            text = served.text
            pieces = text.vocabulary.pieces if prepared.reading.plain else text.marked_pieces
            model = served.model_id
            generation = Generation(prepared, service.client, pieces, Caller(access.id, model, access.began))
            access.details = partial(account, generation, model, access.began)
            if access.prompts:
                generation.keep()
                access.details = partial(told, access.details, body, generation)
            return Answer(generation, model, text.vocabulary, on_end=served.release)
        except BaseException:
            served.release()
            raise

    @post("/v1/chat/completions")
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        return await answer(request, lambda preparer: preparer.chat)

    @post("/v1/completions")
    async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
        return await answer(request, lambda preparer: preparer.completion)

    return [chat_completions, completions]


async def _prepared(body: bytes, served: Served, choose: Choose) -> Prepared:
    """The checked request. Raises `RequestError`."""
    prepare, context = choose(served.text.preparer), served.context
    if len(body) > THREAD_BYTES or any(name in body for name in SLOW):
        prepared = await served.used_by_thread(prepare, body, context)
    else:
        prepared = prepare(body, context)
    # An engine that is just gone has none: its absence is told as such.
    if served.drafters is not None:
        require_drafter(prepared.job.drafting, served.drafters)
    return prepared
