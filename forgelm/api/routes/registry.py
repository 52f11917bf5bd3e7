"""The registry's API under `/registry`, passed on to the sidecar: with the keys and limits of everything here."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
from litestar import Request, route
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp, Receive, Scope, Send

from forgelm.api.access import Access, access_of
from forgelm.api.named import left
from forgelm.api.registry_client import RegistryClient
from forgelm.api.service import Service
from forgelm.errors import ClientLeft, Conflict, NotFound, RegistryUnavailable, UpstreamFailed
from forgelm.fit.budget import present_budget
from forgelm.ipc.envelope import ErrorEnvelope
from forgelm.ipc.registry import BUDGET_HEADER, REQUEST_HEADER
from forgelm.llama.lib import build_info

BUDGETED = ("search", "inspect", "download")
"""What asks whether a model fits this machine, which isn't always the registry's."""
PASSED_ON = ("accept", "content-type")
PASSED_BACK = ("content-type", "content-length", "cache-control", "retry-after", "x-accel-buffering", "location")


Asked = Request[Any, Any, Any]
Opening = Coroutine[Any, Any, httpx.Response]


def registry_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""

    @route("/registry/{path:path}", http_method=["GET", "POST", "DELETE"], status_code=200)
    async def registry(request: Asked, path: FromPath[str]) -> ASGIApp:
        if service.registry is None:
            raise RegistryUnavailable("this server runs without a registry")
        raw = request.scope["raw_path"].decode("latin-1").partition("/registry")[2]
        _require_plain(raw)
        if request.method == "DELETE":
            _refuse_loaded(service, path)
        sent = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        headers = {name: value for name, value in sent.items() if value.isascii()}
        headers[REQUEST_HEADER] = access_of(request.scope).id
        if path.strip("/") in BUDGETED:
            headers[BUDGET_HEADER] = await asyncio.to_thread(_budget)
        query = request.scope["query_string"].decode("latin-1")
        body = await request.body()
        opening = service.registry.open(request.method, f"{raw}?{query}" if query else raw, body, headers)
        answer = await _unless_left(request, service.registry, opening)
        return _Passed(service.registry, answer, partial(_refused, service, access_of(request.scope)))

    return [registry]


def _refuse_loaded(service: Service, path: str) -> None:
    """Raise `Conflict` where `path` names a model that is served, or about to be."""
    section, _, name = path.strip("/").partition("/")
    if section != "models":
        return
    target = service.switcher.target
    known = service.registry.at(target.model) if service.registry and target else ()
    names = {*(target.names if target else ()), *(name for each in known for name in (each.id, *each.aliases))}
    resting = service.switcher.current is None and not service.switcher.changing
    beside = any(name.lower() in each.names for each in service.sides.values())
    if beside or (name.casefold() in map(str.casefold, names) and not resting):
        raise Conflict(f"{name} is loaded: load another model first, or unload it", param="model")


def _require_plain(path: str) -> None:
    """Raise `NotFound` for a path that would become another one, or another host, on its way."""
    if any(part in ("", ".", "..") for part in unquote(path).strip("/").split("/")) or path.startswith("//"):
        raise NotFound(f"no route /registry{path[:80]}")


def _budget() -> str:
    """What a model could have here now, in JSON; header values are one line."""
    return msgspec.json.encode(present_budget(gpu=build_info().gpu_offload)).decode("ascii", "replace")


async def _unless_left(request: Asked, registry: RegistryClient, opening: Opening) -> httpx.Response:
    """The sidecar's answer; given up where the client doesn't wait for it."""
    asked = asyncio.ensure_future(opening)
    gone = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        raise ClientLeft("the client left")
    except asyncio.CancelledError:
        if asked.done() and not asked.cancelled() and asked.exception() is None:
            await registry.close_passed(asked.result())
        asked.cancel()
        raise
    finally:
        gone.cancel()


def _refused(service: Service, access: Access, body: bytes) -> None:
    """Count the sidecar's refusal, and have the log tell it, as those of our own."""
    try:
        code = msgspec.json.decode(body, type=ErrorEnvelope).error.code
    except (msgspec.DecodeError, UnicodeDecodeError):
        code = None
    access.error = code or UpstreamFailed.code
    service.metrics.requests.errors.labels(access.error).inc()


class _Passed:
    """An ASGI app that hands the sidecar's answer on as it comes, until it ends or its client leaves."""

    def __init__(self, registry: RegistryClient, answer: httpx.Response, refused: Callable[[bytes], None]) -> None:
        """`refused` is told the body of an answer that is an error."""
        self._registry = registry
        self._answer = answer
        self._refused = refused

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        copying = asyncio.create_task(self._copy(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((copying, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            copying.cancel()
            await self._registry.close_passed(self._answer)
            await asyncio.wait((copying,))

    async def _copy(self, send: Send) -> None:
        headers = self._answer.headers
        passed = [(name.encode(), headers[name].encode()) for name in PASSED_BACK if name in headers]
        await send({"type": "http.response.start", "status": self._answer.status_code, "headers": passed})
        said = b""
        # Where the sidecar dies the stream just ends: its headers are out.
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for chunk in self._answer.aiter_raw():
                if self._answer.is_error:
                    said += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._answer.is_error:
            self._refused(said)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
