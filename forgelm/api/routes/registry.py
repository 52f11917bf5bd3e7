"""The registry's API under `/registry`, passed on to the sidecar: with the keys and limits of everything here."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
from litestar import Request, route
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream

from forgelm.api.named import left
from forgelm.api.service import Service
from forgelm.errors import Conflict, InvalidRequest, NotFound, RegistryUnavailable
from forgelm.fit.budget import present_budget
from forgelm.ipc.registry import BUDGET_HEADER
from forgelm.llama.lib import build_info

BUDGETED = ("search", "inspect", "download")
"""What asks whether a model fits this machine, which isn't always the registry's."""
PASSED_ON = ("accept", "content-type")
PASSED_BACK = ("content-type", "cache-control", "retry-after", "x-accel-buffering", "location")


def registry_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""

    @route("/registry/{path:path}", http_method=["GET", "POST", "DELETE"], status_code=200)
    async def registry(request: Request[Any, Any, Any], path: FromPath[str]) -> Stream:
        if service.registry is None:
            raise RegistryUnavailable("this server runs without a registry")
        raw = request.scope["raw_path"].decode("latin-1").partition("/registry")[2]
        _require_plain(raw)
        if request.method == "DELETE":
            _refuse_loaded(service, path)
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        if path.strip("/") in BUDGETED:
            headers[BUDGET_HEADER] = await asyncio.to_thread(_budget)
        query = request.scope["query_string"].decode("latin-1")
        body = await request.body()
        opening = service.registry.open(request.method, f"{raw}?{query}" if query else raw, body, headers)
        answer = await _unless_left(request, opening)
        passed = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
        media = passed.pop("content-type", "application/json")
        return Stream(_body(answer), status_code=answer.status_code, headers=passed, media_type=media)

    return [registry]


def _refuse_loaded(service: Service, path: str) -> None:
    """Raise `Conflict` where `path` names a model that is served, or about to be."""
    section, _, name = path.strip("/").partition("/")
    if section != "models":
        return
    target = service.switcher.target
    known = service.registry.known(target.model) if service.registry and target else None
    names = {*(target.names if target else ()), *((known.id, *known.aliases) if known else ())}
    resting = service.switcher.current is None and not service.switcher.changing
    beside = any(name.lower() in each.names for each in service.sides.values())
    if beside or (name.casefold() in map(str.casefold, names) and not resting):
        raise Conflict(f"{name} is loaded: load another model first, or unload it", param="model")


def _require_plain(path: str) -> None:
    """Raise `NotFound` for a path that would become another one on its way."""
    if any(part in (".", "..") for part in unquote(path).split("/")):
        raise NotFound(f"no route /registry{path[:80]}")


def _budget() -> str:
    """What a model could have here now, in JSON; header values are one line."""
    return msgspec.json.encode(present_budget(gpu=build_info().gpu_offload)).decode("ascii", "replace")


async def _unless_left(request: Request[Any, Any, Any], opening: Any) -> httpx.Response:
    """The sidecar's answer; given up where the client doesn't wait for it."""
    asked = asyncio.ensure_future(opening)
    gone = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise InvalidRequest("the client left")
        answer: httpx.Response = asked.result()
        return answer
    finally:
        asked.cancel()
        gone.cancel()


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """What the sidecar sends, as it comes; it hears when nobody reads any more."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError:
        # It died; the stream just ends, as its headers are out.
        return
    finally:
        await answer.aclose()
