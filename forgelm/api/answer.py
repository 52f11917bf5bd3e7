"""The HTTP side of a running request: an ASGI app that streams it or sends it whole, and aborts it when nobody is left.

Written against ASGI and not as a Litestar `Stream`, whose task group costs more per chunk than everything else on the
path of a token.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

from forgelm.api.access import access_of
from forgelm.api.generate import Generation, Said
from forgelm.api.sse import PING, Writer
from forgelm.errors import InternalError, RequestError
from forgelm.ipc.envelope import envelope, headers
from forgelm.llama.vocab import Vocabulary

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Proxies must neither keep nor collect events.
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answer:
    """Sends one request's result. The response starts when the request has been accepted by the engine's queue."""

    def __init__(
        self, generation: Generation, model: str, vocabulary: Vocabulary, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`on_end` is called once nothing of the model is needed any more."""
        self._on_end = on_end
        self._generation = generation
        self._writer = Writer(generation, model, vocabulary)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._access = access_of(scope)
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if self._generation.prepared.stream:
                await self._stream(send)
            else:
                await self._whole(send)
        except Exception:
            self._generation.abort("internal_error")
            raise
        finally:
            # No await may come before the abort: a cancelled task's further awaits are cancelled too.
            self._generation.abort()
            watcher.cancel()
            self._on_end()

    async def _watch(self, receive: Receive) -> None:
        """Abort the request when its client leaves."""
        with suppress(asyncio.CancelledError):
            while (await receive())["type"] != "http.disconnect":
                pass
            self._generation.abort()
            self._generation.ticket.wake()

    async def _stream(self, send: Send) -> None:
        writer, generation, ticket = self._writer, self._generation, self._generation.ticket
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        await send(_body(writer.opening()))
        while not generation.finished:
            try:
                news = await generation.next()
            except Exception as error:  # noqa: BLE001  the status line is out: the stream itself must say that it failed
                told = self._reported(error)
                await send(_body(b"data: " + envelope(told) + b"\n\n", more=False))
                return
            data = b"".join([self._written(said) for said in news])
            if data:
                ticket.touched = time.monotonic()
            elif ticket.ping_due:
                data = PING
            ticket.ping_due = False
            if data:
                await send(_body(data))
        await send(_body(b"" if ticket.aborted else writer.done(), more=False))

    def _written(self, said: Said) -> bytes:
        if said.finish is None:
            return self._writer.delta(said)
        if said.finish == "abort":
            return b""
        return self._writer.delta(said) + self._writer.closing(said)

    async def _whole(self, send: Send) -> None:
        said: list[Said] = []
        while not self._generation.finished:
            try:
                said += await self._generation.next()
            except RequestError as error:
                self._access.refused(error)
                await _send_json(send, error.status, envelope(error), headers(error))
                return
        if not self._generation.ticket.aborted:
            await _send_json(send, 200, self._writer.whole(said), {})

    def _reported(self, error: Exception) -> RequestError:
        """What a client is told of `error`; a bug of ours goes to the log."""
        if not isinstance(error, RequestError):
            self._access.broke(error)
            error = InternalError("the server failed on this request; its log has the details")
            self._generation.break_off(error)
        self._access.refused(error)
        return error


def _body(data: bytes, *, more: bool = True) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _send_json(send: Send, status: int, body: bytes, extra: dict[str, str]) -> None:
    lines = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    lines += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send(_body(body, more=False))
