"""The registry over HTTP: routes, bodies and errors around one library and its downloads.

What takes long runs in threads. Whatever a client sends, it gets OpenAI's error envelope and the next one is served.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from litestar import Litestar, MediaType, Request, Response, delete, get, post
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from forgelm import __version__, log
from forgelm.errors import ForgeError, InternalError, InvalidRequest, NotFound, RegistryUnavailable, RequestError
from forgelm.fit.budget import Budget
from forgelm.ipc.envelope import decode_problem, envelope, headers, http_problem
from forgelm.ipc.registry import BUDGET_HEADER, DownloadRequest, ImportRequest, Search
from forgelm.registry.checks import Check
from forgelm.registry.jobs import Jobs
from forgelm.registry.library import Library
from forgelm.registry.sse import EventStream, events, exhaust, while_listened_to
from forgelm.registry.threads import Threads

BODY_BYTES = 64 << 10
MOST_CARDS = 64
YES, NO = ("1", "true", "yes", "on", ""), ("0", "false", "no", "off")
"""Words of a query for a switch; one without a value is on."""
Asked = Request[Any, Any, Any]
Body = TypeVar("Body", bound=msgspec.Struct)


def make_app(library: Library, jobs: Jobs, threads: Threads) -> Litestar:
    """The app. Whoever serves it resumes and closes the jobs, and ends who waits for the threads."""
    return Litestar(
        [
            health_route(jobs),
            *hub_routes(library, jobs, threads),
            *download_routes(jobs, threads),
            *model_routes(library, jobs, threads),
        ],
        exception_handlers={Exception: _failed},
        request_max_body_size=BODY_BYTES,
        logging_config=None,
        openapi_config=None,
    )


def health_route(jobs: Jobs) -> HTTPRouteHandler:
    """Whether it answers."""

    @get("/health")
    async def health() -> dict[str, str | int]:
        return {"status": "ok", "version": __version__, "downloads": jobs.unfinished}

    return health


def hub_routes(library: Library, jobs: Jobs, threads: Threads) -> list[HTTPRouteHandler]:
    """What asks the hub."""

    @post("/search", status_code=200)
    async def search(request: Asked) -> Response[bytes]:
        asked = await _read(request, Search)
        return _json(await threads.run(library.search, asked, _budget(request)))

    @post("/inspect", status_code=200)
    async def inspect(request: Asked) -> Response[bytes]:
        asked = await _read(request, DownloadRequest)
        planned = await threads.run(library.inspect, asked, _budget(request))
        return _json(planned.wire(accepted=library.is_accepted(planned)))

    @post("/download", status_code=202)
    async def download(request: Asked) -> Response[bytes]:
        asked = await _read(request, DownloadRequest)
        found = await threads.run(jobs.submit, asked, _budget(request))
        return _json(found, 200 if found.state == "done" else 202)

    return [search, inspect, download]


def download_routes(jobs: Jobs, threads: Threads) -> list[HTTPRouteHandler]:
    """The downloads."""

    @get("/downloads")
    async def downloads() -> Response[bytes]:
        return _json(jobs.all())

    @get("/downloads/{name:str}")
    async def one_download(request: Asked, name: FromPath[str]) -> ASGIApp:
        job = jobs.get(name)
        if _wants_json(request):
            return _whole(job.snapshot())
        return EventStream(events(job, jobs.ending))

    @delete("/downloads/{name:str}", status_code=200)
    async def cancel(request: Asked, name: FromPath[str]) -> Response[bytes]:
        purge = _switch(request, "purge")
        return _json(await threads.run(jobs.cancel, name, purge=purge))

    return [downloads, one_download, cancel]


def model_routes(library: Library, jobs: Jobs, threads: Threads) -> list[HTTPRouteHandler]:
    """The models that are here. Their ids have slashes and colons in them."""

    @get("/models")
    async def models() -> Response[bytes]:
        return _json(await threads.run(library.listing))

    @get("/models/{name:path}")
    async def one_model(name: FromPath[str]) -> Response[bytes]:
        return _json(await threads.run(library.find, name.removeprefix("/")))

    @delete("/models/{name:path}", status_code=200)
    async def remove(name: FromPath[str]) -> Response[bytes]:
        return _json(await threads.run(library.remove, name.removeprefix("/")))

    @post("/models/{name:path}", status_code=200)
    async def act(request: Asked, name: FromPath[str]) -> ASGIApp:
        model, _, action = name.removeprefix("/").rpartition("/")
        if action == "used":
            return _whole(await threads.run(library.used, model))
        if action == "verify":
            return await _verify(request, Check(library, await threads.run(library.find, model)), jobs)
        raise NotFound(f"no route POST {request.url.path}")

    @post("/import", status_code=200)
    async def add(request: Asked) -> Response[bytes]:
        asked = await _read(request, ImportRequest)
        if not asked.path.startswith(("/", "~")):
            raise InvalidRequest("path: must be absolute", param="path")
        return _json(await threads.run(library.add, Path(asked.path)))

    return [models, one_model, remove, act, add]


async def _verify(request: Asked, check: Check, jobs: Jobs) -> ASGIApp:
    """Hash a model as long as somebody listens, or waits for the end."""
    check.start()
    going = events(check, jobs.ending)
    if not _wants_json(request):
        return EventStream(going, check.stop)
    await while_listened_to(exhaust(going), request.receive, check.stop)
    if check.failure is not None:
        raise check.failure
    if jobs.ending.begun:
        raise RegistryUnavailable("the registry is about to end: try again", retry_after=2)
    return _whole(check.snapshot())


# --- what comes in ---


async def _read(request: Asked, kind: type[Body]) -> Body:
    """The body. Raises `InvalidRequest`."""
    body = await request.body()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise decode_problem(error, body) from None


def _budget(request: Asked) -> Budget | None:
    """The memory of the machine that asks; None where it doesn't say. Raises `InvalidRequest`."""
    said = request.headers.get(BUDGET_HEADER)
    if said is None:
        return None
    try:
        budget = msgspec.json.decode(said, type=Budget)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{BUDGET_HEADER}: {error}", param=BUDGET_HEADER) from None
    if not 0 <= budget.cards <= MOST_CARDS:
        raise InvalidRequest(f"{BUDGET_HEADER}: {budget.cards} cards", param=BUDGET_HEADER)
    return budget


def _switch(request: Asked, name: str) -> bool:
    """A switch in the query. Raises `InvalidRequest`."""
    said = request.query_params.get(name, "no").lower()
    if said not in (*YES, *NO):
        raise InvalidRequest(f"{name}: must be true or false", param=name)
    return said in YES


def _wants_json(request: Asked) -> bool:
    return "application/json" in request.headers.get("accept", "")


# --- what goes out ---


def _json(found: msgspec.Struct, status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(found), status_code=status, media_type=MediaType.JSON)


def _whole(found: msgspec.Struct) -> ASGIApp:
    """For handlers that answer with a stream as well."""
    return ASGIResponse(body=msgspec.json.encode(found), media_type=MediaType.JSON)


def _failed(request: Asked, error: Exception) -> Response[bytes]:
    """Litestar's hook: any exception of a handler to a response."""
    mapped = _mapped(request, error)
    return Response(envelope(mapped), status_code=mapped.status, media_type=MediaType.JSON, headers=headers(mapped))


def _mapped(request: Asked, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException) and error.status_code < 500:
        return http_problem(error.status_code, request.method, request.url.path, str(error.detail))
    if isinstance(error, ForgeError):
        return InternalError(str(error))
    if isinstance(error, OSError) and error.filename:
        return InternalError(f"{error.filename}: {error.strerror}")
    log.get("registry").error("unhandled exception", path=request.url.path, exc_info=error)
    return InternalError("the registry failed on this request; its log has the details")
