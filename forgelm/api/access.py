"""What every request leaves behind: an id that its response carries, and one line in the log when it has ended.

Knows HTTP and nothing of models: what there is to tell of an answer a route adds.
"""

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from forgelm import log
from forgelm.config import Logs
from forgelm.errors import RequestError

HEADER = b"x-request-id"
SANE = re.compile(rb"[!-~]{1,128}")
"""An id of a client's that is taken over: printable ASCII without blanks, and not too long."""
PROBES = frozenset({"/health", "/livez", "/readyz", "/metrics"})
"""Asked again and again by machines: of interest to nobody."""
LONGEST_PATH = 200
LONGEST_TEXT = 65_536
"""Characters of a prompt or an answer in the log, where it has them."""
CLIENT_LEFT = 499
"""What proxies log for a client that didn't wait; nobody reads it."""

Details = Callable[[], dict[str, Any]]


class Access:
    """One request on its way."""

    __slots__ = (
        "_answered",
        "_path",
        "began",
        "details",
        "error",
        "failed",
        "id",
        "left",
        "method",
        "prompts",
        "reason",
        "status",
    )

    def __init__(self, scope: Scope, *, prompts: bool = False) -> None:
        self.id = _taken_over(scope) or f"req_{secrets.token_hex(16)}"
        self.method = str(scope.get("method", ""))
        self._path: str = scope["path"]
        self.prompts = prompts
        """The line shall have what was asked and answered."""
        self.began = time.monotonic()
        self.status = 0
        """Of the response; 0 before there is one."""
        self.error = ""
        """The code of the error that the client was told."""
        self.reason = ""
        """Of a failure of ours, in words. Not of a refusal: those may quote what was asked."""
        self.failed = False
        """It went wrong after the status had been sent."""
        self.left = False
        """The client did, before its answer was complete."""
        self.details: Details | None = None
        """What its route has to tell when it has ended."""
        self._answered = False

    def sending(self, send: Send) -> Send:
        """`send` with the id in the response's headers."""

        def watched(message: Message) -> Any:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, self.id.encode())]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                self._answered = True
            # No coroutine of its own: it is called for each piece of a stream.
            return send(message)

        return watched

    def receiving(self, receive: Receive) -> Receive:
        """`receive` that notes a client's leaving."""

        async def watched() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect" and not self._answered:
                self.left = True
            return message

        return watched

    def refused(self, error: RequestError) -> None:
        """The client is told of an error."""
        self.error = error.code or error.type
        if error.status >= 500:
            self.failed, self.reason = True, str(error)

    def broke(self, error: Exception) -> None:
        """A bug of ours: to the log, with its own words only where prompts may be there as well."""
        said: dict[str, Any] = {"exc_info": error} if self.prompts else {"where": log.places(error)}
        log.get("api").error("unhandled exception", request=self.id, route=self._route, **said)

    @property
    def _route(self) -> str:
        return f"{self.method} {self._path[:LONGEST_PATH]}"

    @property
    def level(self) -> str:
        """How much of a matter it is: failures, what somebody has computed or changed, what was merely looked at."""
        if self._path in PROBES:
            return "debug"
        if self.failed or self.status >= 500:
            return "warning"
        asked = self.method not in ("GET", "HEAD", "OPTIONS")
        return "info" if asked or self.status >= 400 else "debug"

    def line(self) -> dict[str, Any]:
        """What the line says, apart from its name."""
        said: dict[str, Any] = {
            "request": self.id,
            "route": self._route,
            "status": CLIENT_LEFT if self.left else self.status,
            "seconds": round(time.monotonic() - self.began, 4),
        }
        if self.error:
            said["error"] = self.error
        if self.reason:
            said["reason"] = self.reason
        return said | (self.details() if self.details else {})


class Recorded:
    """The app, with an id for each request and a line in the log for each that has ended, however it did."""

    def __init__(self, app: ASGIApp, logs: Logs) -> None:
        self._app = app
        self._logs = logs
        self._log = log.get("access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope["type"]) != "http":
            await self._app(scope, receive, send)
            return
        access = Access(scope, prompts=self._logs.prompts)
        scope.setdefault("state", {})["access"] = access
        try:
            await self._app(scope, access.receiving(receive), access.sending(send))
        finally:
            if self._logs.requests:
                getattr(self._log, access.level)("request", **access.line())


def access_of(scope: Scope) -> Access:
    """The record of the request that `scope` is of."""
    access: Access = scope["state"]["access"]
    return access


def _taken_over(scope: Scope) -> str:
    """The client's own id; "" where it sent none, or one that logs and headers are better off without."""
    for name, value in scope["headers"]:
        if name == HEADER:
            return value.decode() if SANE.fullmatch(value) else ""
    return ""
