"""A child process's life: start, load, serve, restart, stop. Runs in the API process, on its event loop.

What is the same for every child that computes is the `Keeper`'s; `Supervisor` keeps the engine.
One task owns the child. Messages go straight to the listener; what the engine's state is, everybody asks here. A child
is alive when it makes progress: with work outstanding and no step for longer than the step was predicted to take plus
a margin, it is killed and started again, with growing pauses, until it crashes so often that trying on is pointless.
"""

import asyncio
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from forgelm import log
from forgelm.ipc.framing import FrameBuffer, FrameError, frame
from forgelm.ipc.messages import (
    Drain,
    Fatal,
    FromEngine,
    Loading,
    Message,
    ModelFacts,
    Ready,
    Step,
    Working,
    decode_from_engine,
)

PREDICTION_MARGIN = 10.0
"""An announced step may take this many times its predicted seconds before it counts as hung."""
LOAD_SILENCE_SECONDS = 600.0
"""A load that reports nothing for so long is hung; slow disks are slower than one thinks."""
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
CRASH_LIMIT = 5
"""Crashes in a row, each before or within HEALTHY_SECONDS of being ready, after which restarting stops."""
HEALTHY_SECONDS = 60.0
KILL_SECONDS = 2.0
"""How long a child may take to end after its socket is closed."""


class Phase(Enum):
    """Where the engine is in its life."""

    DOWNLOADING = "downloading"
    """There is none yet: its model is being fetched."""
    UNLOADED = "unloaded"
    """There is none until somebody asks something."""
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class Status(msgspec.Struct, frozen=True):
    """What `/readyz` and errors tell of the engine."""

    phase: Phase
    percent: float = 0.0
    """Of the load."""
    reason: str = ""
    """Why it is restarting or failed."""
    restarts: int = 0
    facts: ModelFacts | None = None
    """Of the loaded model, while ready."""


class Owner(Protocol):
    """Whoever has requests in a child."""

    def on_down(self, reason: str) -> None:
        """The child is gone; nothing more will come for any open request."""

    @property
    def has_open_requests(self) -> bool:
        """Whether the child owes anybody anything."""


class Listener(Owner, Protocol):
    """Whoever has requests in the engine."""

    def on_step(self, step: Step) -> None:
        """A step's results."""


class Command(msgspec.Struct, frozen=True):
    """How to start the engine process."""

    module: str
    config: str
    """Its second argument, JSON."""
    environment: dict[str, str]
    """Laid over this process's own."""


OwnerT = TypeVar("OwnerT", bound=Owner)


class Keeper(ABC, Generic[OwnerT]):
    """Starts and restarts one child process and passes messages both ways; which messages, each kind says."""

    name = "engine"
    """What the child is called in errors and in the log."""

    def __init__(
        self,
        command: Command,
        listener: OwnerT,
        hang_seconds: float,
        flush_seconds: float = 0.0,
        *,
        restarts: int = 0,
    ) -> None:
        """`flush_seconds` is what a child may take to write things down after its last request; `restarts` were counted
        before."""
        self._flush_seconds = flush_seconds
        self._command = command
        self._listener = listener
        self._hang_seconds = hang_seconds
        self._log = log.get("supervisor")
        self.status = Status(Phase.LOADING, restarts=restarts)
        self.on_status: Callable[[], None] = lambda: None
        """Called after every change of `status`."""
        self.pid = 0
        self.was_ready = False
        self._link: _Link | None = None
        self._stopping = asyncio.Event()
        """Set once no other child shall be started."""
        self._ready_since = 0.0
        """When the present child got ready; 0 before."""
        self._last_progress = 0.0
        self._allowed_silence = hang_seconds
        self._crashes = 0

    # --- what others ask ---

    @property
    def ready_since(self) -> float | None:
        """When the present child got ready, by the monotonic clock; None while it isn't."""
        return self._ready_since if self.status.phase is Phase.READY else None

    def send(self, message: Message) -> None:
        """Write a message to the child; dropped when there is none, since `on_down` has told its requests so."""
        if self._link is None:
            return
        if not self._listener.has_open_requests:
            # The child was silent because nobody asked anything of it.
            self._progress(self._hang_seconds)
        self._link.write(frame(message))

    async def run(self) -> None:
        """Keep a child running until `stop`, or until it has failed for good."""
        try:
            await self._live()
        except Exception as error:  # noqa: BLE001
            # A bug here must not leave a server that says "loading" for ever.
            self._log.exception("the supervisor failed")
            self._set(Status(Phase.FAILED, reason=f"the supervisor failed: {error!r}", restarts=self.status.restarts))
            self._listener.on_down(self.status.reason)

    async def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                reason = await self._one_life()
            except OSError as error:
                reason = f"the {self.name} process can't be started: {error.strerror}"
            self._listener.on_down(reason)
            if self._stopping.is_set() or self.status.phase is Phase.FAILED:
                break
            await self._pause(reason)

    async def stop(self, drain_seconds: float) -> None:
        """Let a ready child finish what it has for up to `drain_seconds`, then end it; one that loads is ended now."""
        self._stopping.set()
        link = self._link
        if link is not None:
            if self.status.phase is Phase.READY:
                link.write(frame(Drain()))
                # With nothing left to finish or to write down, one that stays is hung.
                owes = self._listener.has_open_requests
                await _happens(link.closed, (drain_seconds if owes else KILL_SECONDS) + self._flush_seconds)
            link.close()
        self._set(Status(Phase.STOPPED, restarts=self.status.restarts))

    # --- one child ---

    async def _one_life(self) -> str:
        """Start a child and stay with it to its end; returns why it ended."""
        process, ours = await self._spawn()
        self.pid = process.pid
        link = self._link = _Link(self.name, self._receive)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
            if self._stopping.is_set():
                # Asked while the child was being started, when there was nothing to tell it to yet.
                link.close()
            reason = await self._stay(process, link)
        finally:
            self._link = None
            if process.returncode is None:
                process.kill()
                await process.wait()
        if self._ready_since and time.monotonic() - self._ready_since > HEALTHY_SECONDS:
            self._crashes = 0
        return reason

    async def _stay(self, process: asyncio.subprocess.Process, link: "_Link") -> str:
        self._ready_since = 0.0
        self._progress(LOAD_SILENCE_SECONDS)
        hung = await self._watch(link)
        link.close()
        return link.reason or await self._end(process, killed=hung)

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """A new child and our end of its socket. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return await self._start_process(theirs.fileno()), ours
            except BaseException:
                ours.close()
                raise

    async def _start_process(self, descriptor: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._command.module,
            str(descriptor),
            self._command.config,
            pass_fds=(descriptor,),
            stdin=asyncio.subprocess.DEVNULL,
            env=os.environ | self._command.environment,
        )

    async def _watch(self, link: "_Link") -> bool:
        """Wait for the child's socket to close; True if it hung instead."""
        interval = min(1.0, self._hang_seconds / 4)
        before = time.monotonic()
        while not await _happens(link.closed, interval):
            now = time.monotonic()
            late = now - before - interval
            if late > interval:
                # It was this process that stood still (Ctrl-Z, a frozen container): messages may lie unread.
                self._last_progress += late
            before = now
            if self._hung():
                return True
        return False

    def _hung(self) -> bool:
        loading = self.status.phase is not Phase.READY
        owes = loading or self._listener.has_open_requests
        return owes and time.monotonic() - self._last_progress > self._allowed_silence

    async def _end(self, process: asyncio.subprocess.Process, *, killed: bool) -> str:
        if not killed:
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        if killed:
            return f"the {self.name} made no progress for {self._allowed_silence:.0f} s and was killed"
        code = process.returncode or 0
        return f"the {self.name} " + (f"was killed by signal {-code}" if code < 0 else f"exited with code {code}")

    # --- messages ---

    @abstractmethod
    def _receive(self, body: bytes) -> None:
        """Decode a message and act on it. Raises `msgspec.DecodeError`."""

    def _on_common(self, message: Working | Loading | Fatal) -> None:
        """Act on what every kind of child says."""
        match message:
            case Working(seconds):
                self._progress(self._hang_seconds + PREDICTION_MARGIN * seconds)
            case Loading(fraction):
                self._progress(LOAD_SILENCE_SECONDS)
                self._set(Status(Phase.LOADING, 100 * fraction, self.status.reason, self.status.restarts))
            case Fatal(reason, loading):
                assert self._link is not None
                self._link.reason = reason
                if loading and not self.was_ready:
                    # Trying again would fail the same way. A file that did load once may load again: memory comes back.
                    self._set(Status(Phase.FAILED, reason=reason, restarts=self.status.restarts))

    def _on_ready(self, description: str, load_seconds: float, facts: ModelFacts | None = None) -> None:
        """The child takes requests."""
        self._progress(self._hang_seconds)
        self.was_ready = True
        self._ready_since = time.monotonic()
        self._set(Status(Phase.READY, 100.0, restarts=self.status.restarts, facts=facts))
        self._log.info(f"{self.name} ready", model=description, seconds=round(load_seconds, 2))

    def _progress(self, allowed_silence: float) -> None:
        self._last_progress = time.monotonic()
        self._allowed_silence = allowed_silence

    # --- restarts ---

    async def _pause(self, reason: str) -> None:
        """Wait before the next start, or give up."""
        self._crashes += 1
        restarts = self.status.restarts + 1
        if self._crashes >= CRASH_LIMIT:
            self._set(Status(Phase.FAILED, reason=f"{reason}; {self._crashes} times in a row", restarts=restarts))
            self._log.error(f"{self.name} failed for good", reason=reason, crashes=self._crashes)
            self._stopping.set()
            return
        seconds = BACKOFF_SECONDS[min(self._crashes, len(BACKOFF_SECONDS)) - 1]
        self._set(Status(Phase.RESTARTING, reason=reason, restarts=restarts))
        self._log.warning(f"{self.name} down, restarting", reason=reason, pause=seconds)
        await _happens(self._stopping, seconds)

    def _set(self, status: Status) -> None:
        self.status = status
        self.on_status()


class Supervisor(Keeper[Listener]):
    """Keeps the engine process."""

    def _receive(self, body: bytes) -> None:
        self._on_message(decode_from_engine(body))

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case Step():
                self._progress(self._hang_seconds)
                self._listener.on_step(message)
            case Ready(facts):
                self._on_ready(facts.description, facts.load_seconds, facts)
            case _:
                self._on_common(message)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Whether `event` is set, now or within `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class _Link(asyncio.Protocol):
    """The API's end of the socket: bytes to messages, without a task or an await per message."""

    def __init__(self, name: str, receive: Callable[[bytes], None]) -> None:
        self._name = name
        self._receive = receive
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self.reason = ""
        """The child's own words for why it ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport says without being one.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._buffer.feed(data):
                self._receive(body)
        except (FrameError, msgspec.DecodeError) as error:
            self.reason = f"the {self._name} sent nonsense: {error}"
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def write(self, data: bytes) -> None:
        """Send without waiting; the child drains its inbox at each step."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the socket, which tells the child to end."""
        if self._transport is not None:
            self._transport.close()
        self.closed.set()
