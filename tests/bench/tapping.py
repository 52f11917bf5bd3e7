"""A recording proxy for tests, in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from forgelm.bench.client import Endpoint
from forgelm.bench.recording import Proxy, Recording
from forgelm.bench.trace import Head, Recorded, read_trace
from tests.api.live import until

STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class Tap:
    """A proxy in a thread of its own, and its trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = 0
        self.recording: Recording | None = None

    def post(self, route: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{route}"
        return httpx.post(url, content=content, trust_env=False, timeout=30.0, **options)

    def wait(self, count: int) -> None:
        """Until so many requests are written down: their clients have the last byte before that."""
        until(lambda: self.recording and self.recording.written == count, f"{count} requests are written down")

    def read(self) -> tuple[Head, list[Recorded]]:
        return read_trace(self.path)


@contextmanager
def tap(url: str, path: Path, *, text: bool = False) -> Iterator[Tap]:
    """A proxy before `url`."""
    found, begun, over = Tap(path), threading.Event(), asyncio.Event()

    async def run() -> None:
        with Recording(path, text=text) as found.recording:
            proxy = Proxy(Endpoint(url), found.recording)
            server = await proxy.listen("127.0.0.1", 0)
            found.port = server.sockets[0].getsockname()[1]
            loop.append(asyncio.get_running_loop())
            begun.set()
            await over.wait()
            server.close()
            await proxy.close()

    loop: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert begun.wait(20)
        yield found
    finally:
        loop[0].call_soon_threadsafe(over.set)
        thread.join(20)
        assert not thread.is_alive()
