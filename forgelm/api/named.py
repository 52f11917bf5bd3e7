"""Which model a request names, before anybody reads the rest of it; and whether its client is still there."""

from typing import Any

import msgspec
from litestar import Request


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()


def asked_model(body: bytes) -> str:
    """The name in a JSON body's `model`; "" where there is none, or where the body is wrong, which is told later."""
    try:
        raw = msgspec.json.decode(body, type=_Named).model
        return msgspec.json.decode(raw, type=str | None) or "" if raw else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


async def left(request: Request[Any, Any, Any]) -> None:
    """Return when the client of a request that was read in full is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
