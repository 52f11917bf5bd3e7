"""Failures as OpenAI's error envelope, and what is wrong with JSON that doesn't decode: for every server of ours."""

import json
import math
import re
from typing import Any

import msgspec

from forgelm.errors import (
    BodyTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    Unauthorized,
)

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


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    error: ErrorBody


def envelope(error: RequestError) -> bytes:
    """The JSON of OpenAI's error object."""
    return msgspec.json.encode(ErrorEnvelope(ErrorBody(str(error), error.type, error.param, error.code)))


def headers(error: RequestError) -> dict[str, str]:
    """Headers that belong to the error: when to try again."""
    return {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}


def http_problem(status: int, method: str, path: str, detail: str) -> RequestError:
    """What a web framework found wrong with a request by itself, below 500: no such route, too large a body."""
    if status == 404:
        detail = f"no route {method} {path}"
    elif status == 405:
        detail = f"{path} does not take {method}"
    elif status == 413:
        detail = "the body is larger than this server accepts"
    return _HTTP.get(status, InvalidRequest)(detail)


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
