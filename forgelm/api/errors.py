"""The exception handler of the API: whatever a handler raises becomes OpenAI's envelope, and is counted."""

from typing import Any

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from forgelm.api.access import access_of
from forgelm.errors import InternalError, RequestError
from forgelm.ipc.envelope import envelope, headers, http_problem
from forgelm.metrics import Metrics


def exception_handler(metrics: Metrics) -> "_Handler":
    """Litestar's hook: any exception of a handler to a response."""
    return _Handler(metrics)


class _Handler:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        access = access_of(request.scope)
        mapped = self._map(request, error)
        access.refused(mapped)
        self._metrics.requests.refuse(mapped)
        return Response(envelope(mapped), status_code=mapped.status, media_type=MediaType.JSON, headers=headers(mapped))

    def _map(self, request: Request[Any, Any, Any], error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, HTTPException) and error.status_code < 500:
            return http_problem(error.status_code, request.method, request.url.path, str(error.detail))
        access_of(request.scope).broke(error)
        return InternalError("the server failed on this request; its log has the details")
