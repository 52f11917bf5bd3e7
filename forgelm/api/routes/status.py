"""`GET /status`: the running server at a glance, in whatever phase it is."""

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

from forgelm.api.service import Service
from forgelm.api.status import StatusReporter


def status_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""
    reporter = StatusReporter(service)

    @get("/status")
    async def status() -> Response[bytes]:
        return Response(msgspec.json.encode(await reporter.report()), media_type=MediaType.JSON)

    return [status]
