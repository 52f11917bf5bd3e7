"""The running server at a glance, in whatever phase it is: `GET /status`, and what llama-server has for that."""

from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from forgelm.api.service import Service
from forgelm.api.slots import props, slots
from forgelm.api.status import StatusReporter
from forgelm.errors import Unavailable


def status_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""
    reporter = StatusReporter(service)

    @get("/status")
    async def status() -> Response[bytes]:
        return _json(await reporter.report())

    @get("/slots")
    async def slots_(request: Request[Any, Any, Any]) -> Response[bytes]:
        found = slots(service)
        if request.query_params.get("fail_on_no_slot") and all(each["is_processing"] for each in found):
            raise Unavailable("every slot is taken", retry_after=1)
        return _json(found)

    @get("/props")
    async def props_() -> Response[bytes]:
        return _json(props(service))

    return [status, slots_, props_]


def _json(found: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(found), media_type=MediaType.JSON)
