"""Server-sent events of something that goes on: one at each change, not too many, and a sign of life in between.

Waiting costs nothing: whoever makes a change wakes the loop, once for all the changes until they are looked at.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any, Protocol

import msgspec
from litestar.types import Receive, Scope, Send

from forgelm.registry.ending import Ending

PING = b": ping\n\n"
PING_SECONDS = 10.0
LEAST_SECONDS = 0.25
"""From one event to the next."""
FADE_SECONDS = 1.0
"""How often a rate is told that falls because nothing comes."""
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Proxies must neither keep nor collect events.
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Going(Protocol):
    """Something at one moment."""

    @property
    def ended(self) -> bool:
        """Whether this is its last state."""

    @property
    def rate(self) -> float:
        """Bytes per second."""


class Watched(Protocol):
    """Something that goes on."""

    def snapshot(self) -> Going:
        """As it is now."""

    def watched(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        """Have `notify` called at each change, from any thread."""


class Signal:
    """Set from any thread, waited for in one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._pending = False

    def __call__(self) -> None:
        """Set it. Does nothing where it is set already, or the loop is gone."""
        if not self._pending:
            self._pending = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Begin anew, before looking at what may change."""
        self._pending = False
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether it is set, now or within `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


async def events(watched: Watched, ending: Ending) -> AsyncGenerator[bytes, None]:
    """The states of `watched` up to its last, or until the process is about to end."""
    signal = Signal()
    with watched.watched(signal), ending.told(signal):
        said, spoke = b"", time.monotonic()
        while True:
            signal.clear()
            now = watched.snapshot()
            data = b"data: " + msgspec.json.encode(now) + b"\n\n"
            if data != said:
                said, spoke = data, time.monotonic()
                yield data
            elif time.monotonic() - spoke >= PING_SECONDS:
                spoke = time.monotonic()
                yield PING
            if now.ended or ending.begun:
                return
            await asyncio.sleep(LEAST_SECONDS)
            silent = spoke + PING_SECONDS - time.monotonic()
            await signal.wait(min(silent, FADE_SECONDS) if now.rate > 0 else silent)


class EventStream:
    """An answer of events. It ends when its client leaves, and then calls `on_left`."""

    def __init__(self, source: AsyncGenerator[bytes, None], on_left: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._on_left = on_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as an ASGI application."""
        await while_listened_to(self._send(send), receive, self._on_left)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with aclosing(self._source) as source:
            async for data in source:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def exhaust(source: AsyncGenerator[bytes, None]) -> None:
    """Wait for the last event without telling any."""
    async with aclosing(source):
        async for _ in source:
            pass


async def while_listened_to(work: Coroutine[Any, Any, None], receive: Receive, on_left: Callable[[], None]) -> None:
    """Do `work`, or as much of it as can be done until the client leaves; then call `on_left`."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            await worker
        else:
            on_left()
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _left(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
