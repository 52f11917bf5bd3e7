"""Every failure as OpenAI's error envelope, in a response or inside a stream."""

import json
import math
import re
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from forgelm import log
from forgelm.api.wire import ErrorBody, ErrorEnvelope
from forgelm.errors import (
    BodyTooLarge,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    Unauthorized,
)
from forgelm.metrics import Metrics

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")
_MAX_DEPTH = 32
"""How far down a broken body is searched for the value that broke it."""
_HTTP: dict[int, type[RequestError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
}


def envelope(error: RequestError) -> bytes:
    """The JSON of OpenAI's error object."""
    return msgspec.json.encode(ErrorEnvelope(ErrorBody(str(error), error.type, error.param, error.code)))


def headers(error: RequestError) -> dict[str, str]:
    """Headers that belong to the error: when to try again."""
    return {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}


def decode_problem(error: Exception, body: bytes) -> InvalidRequest:
    """What is wrong with a body that didn't decode, naming the field."""
    if isinstance(error, msgspec.ValidationError):
        return mistyped(error)
    try:
        body.decode()
    except UnicodeDecodeError as bad:
        return InvalidRequest(f"the body is not UTF-8: byte {bad.start} is invalid")
    return _json_problem(str(error), body)


def mistyped(error: msgspec.ValidationError, at: str = "") -> InvalidRequest:
    """What msgspec says of a value, naming the field; `at` is the value's own."""
    text = str(error)
    path, missing = _PATH.search(text), _MISSING.search(text)
    # "[...]" stands for a key of a mapping, which msgspec doesn't tell.
    parts = (at, path.group(1).removesuffix("[...]") if path else "", missing.group(1) if missing else "")
    field = ".".join(filter(None, parts))
    message = _PATH.sub("", text)
    return InvalidRequest(f"{field}: {message}" if field else message, param=field or None)


def _json_problem(text: str, body: bytes) -> InvalidRequest:
    """msgspec names no field where JSON itself is broken. Python's decoder takes what clients in Python and JavaScript
    send by mistake, NaN and lone surrogates, and so can tell which field holds it."""
    try:
        found = _unsound(json.loads(body))
    except (ValueError, RecursionError):
        found = None
    if found is None:
        return InvalidRequest(f"the body is not valid JSON: {text}")
    path, problem = found
    path = path.removeprefix(".").encode(errors="replace").decode()[:100]
    return InvalidRequest(f"{path}: {problem}" if path else problem, param=path or None)


def _unsound(value: Any, depth: int = 0) -> tuple[str, str] | None:
    """Where the first value lies that JSON can't hold, and what is wrong with it."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", "NaN and Infinity are no numbers in JSON")
    if isinstance(value, str):
        return None if _is_text(value) else ("", "a \\ud800-\\udfff escape that is no character (a lone surrogate)")
    if not isinstance(value, dict | list) or depth == _MAX_DEPTH:
        return None
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        found = _unsound(inner, depth + 1)
        if found is not None:
            return (f".{key}" if isinstance(key, str) else f"[{key}]") + found[0], found[1]
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def exception_handler(metrics: Metrics) -> "_Handler":
    """Litestar's hook: any exception of a handler to a response."""
    return _Handler(metrics)


class _Handler:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = log.get("api")

    def __call__(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        mapped = self._map(request, error)
        self._metrics.errors.labels(mapped.code or mapped.type).inc()
        return Response(envelope(mapped), status_code=mapped.status, media_type=MediaType.JSON, headers=headers(mapped))

    def _map(self, request: Request[Any, Any, Any], error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, HTTPException) and error.status_code < 500:
            return _HTTP.get(error.status_code, InvalidRequest)(_http_text(request, error))
        self._log.error("unhandled exception", path=request.url.path, exc_info=error)
        return InternalError("the server failed on this request; its log has the details")


def _http_text(request: Request[Any, Any, Any], error: HTTPException) -> str:
    if error.status_code == 404:
        return f"no route {request.method} {request.url.path}"
    if error.status_code == 405:
        return f"{request.url.path} does not take {request.method}"
    if error.status_code == 413:
        return "the body is larger than this server accepts"
    return str(error.detail)
