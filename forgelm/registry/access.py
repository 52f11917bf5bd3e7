"""Requests in the registry's log, by the name that the server in front calls them."""

import time
from contextlib import nullcontext

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from forgelm import log
from forgelm.ipc.registry import REQUEST_HEADER

_HEADER = REQUEST_HEADER.encode()
_LONGEST_NAME = 128
_LONGEST_PATH = 200


class Named:
    """The app, whose lines about a request say which one; its end is a line at debug level: the server has one, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = log.get("registry")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, began = 0, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        name = _name(scope)
        with log.about(name) if name else nullcontext():
            try:
                await self._app(scope, receive, watched)
            finally:
                route = f"{scope.get('method', '')} {scope['path'][:_LONGEST_PATH]}"
                self._log.debug("request", route=route, status=status, seconds=round(time.monotonic() - began, 4))


def _name(scope: Scope) -> str:
    sent = dict(scope["headers"]).get(_HEADER, b"")
    return sent[:_LONGEST_NAME].decode("ascii", "replace")
