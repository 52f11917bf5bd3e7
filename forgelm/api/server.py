"""Runs the app on uvicorn: one socket that is ours, and what a person sees when it is ready and when it can't start."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forgelm.api.app import make_app
from forgelm.api.metrics_server import UNCHANGED, Scraping
from forgelm.api.served import Served
from forgelm.api.service import Service, Setup
from forgelm.errors import EngineError
from forgelm.notify import Notifier


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _never_preempt() -> None:
    """Wait for a core instead of taking one: woken at each step, this process would interrupt the engine's threads.

    All of them wait at the next barrier for the one that was interrupted. Decoding 8 sequences on 2 cores is 5 %
    faster so (bench/LOG.md), and there is a gap to run in after each step.
    """
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class _Protocol(HttpToolsProtocol):
    """Tells the request that is being answered that its client left.

    uvicorn tells the connection's newest one, which is another where requests were sent without waiting for answers:
    the first would be computed to its end for nobody, and fail on a connection that is closed.
    """

    _answered: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


class _Uvicorn(uvicorn.Server):
    """Ends what outlasts the drain with a word to its client; uvicorn would cut it and log a traceback each.

    From its start to its end the service manager hears how things are.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._hurry = asyncio.Event()
        self._notifier = Notifier()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal."""
        service, self._notifier = self._service, Notifier.take(os.environ)
        telling = asyncio.create_task(self._notifier.tell(lambda: service.status, lambda: service.model_id))
        try:
            await super().serve(sockets)
        finally:
            telling.cancel()
            self._notifier.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in order; requests may go on for `limits.drain_seconds`, or until a second signal."""
        self._notifier.stopping()
        last_word = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            last_word.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second ends all requests; a third SIGINT drops everything."""
        if not self.should_exit or self._hurry.is_set():
            super().handle_exit(sig, frame)
        else:
            # It runs between two instructions of the loop's thread; waking the loop is left to its next round.
            self._hurry.set()

    async def _end_requests(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._service.profile.limits.drain_seconds):
                await self._hurry.wait()
        self._service.end_all("the server is shutting down")


class ApiServer:
    """One server, from the first socket to the last request."""

    def __init__(
        self,
        setup: Setup,
        *,
        api_keys: tuple[str, ...] = (),
        scraping: Scraping = UNCHANGED,
        on_ready: Callable[[Service], None] = lambda _: None,
        on_first_answer: Callable[[], None] | None = None,
    ) -> None:
        """See `Service`; `on_ready` is told of the first model. Raises `ModelError`."""
        self._failure = ""
        self._on_ready = on_ready
        self._service = Service(setup)
        self._service.on_ready = self._announce
        self._service.client.on_first_answer = on_first_answer
        app = make_app(self._service, api_keys=api_keys, scraping=scraping, on_unusable=self._give_up)
        self._announced = False
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=_Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                # For clients that don't even take the last word.
                timeout_graceful_shutdown=int(self._service.profile.limits.drain_seconds) + 2,
            ),
            self._service,
        )

    def run(self, listener: socket.socket) -> None:
        """Serve until a signal. Raises `EngineError` when the engine could not be started at all."""
        _never_preempt()
        try:
            self._server.run(sockets=[listener])
        finally:
            listener.close()
        if self._failure:
            raise EngineError(self._failure)

    def stop(self) -> None:
        """End `run` in order, as a signal does. May be called from another thread."""
        self._server.should_exit = True

    @property
    def service(self) -> Service:
        """What it serves."""
        return self._service

    def _announce(self, _: Served) -> None:
        if not self._announced:
            self._announced = True
            self._on_ready(self._service)

    def _give_up(self, reason: str) -> None:
        self._failure = reason
        self.stop()
