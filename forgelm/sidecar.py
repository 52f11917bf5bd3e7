"""The registry process's life beside the server: started, watched, started again; or somebody else's, attached to.

Serving doesn't need it: its death is a line in the log, and a 503 for those who ask it something meanwhile.
"""

import asyncio
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forgelm import log, paths
from forgelm.ipc.registry import WORKS

MODULE = "forgelm.registry.main"
SOCKET = "registry.sock"
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
HEALTHY_SECONDS = 60.0
"""A process that lived so long starts a new count of failures."""
STOP_SECONDS = 3.0
PREFIX = "forgelm-"
OURS = re.compile(r"forgelm-\d+-[0-9a-f]{8}")
STARTING_SECONDS = 120.0
LONGEST = 60
"""Bytes of a path that leave room for ours."""


class Sidecar:
    """A registry process and where it listens."""

    def __init__(self, config: Callable[[Path], str] | None = None, attached: Path | None = None) -> None:
        """`config` makes the process's argument for a socket; without it the one at `attached` is used."""
        self._config = config
        self._directory: Path | None = None
        if attached is None:
            self._directory = _private_directory()
            attached = self._directory / SOCKET
        self.socket = attached
        """Where it listens, or will."""
        self.pid = 0
        self.working = False
        """It fetches or hashes: a core is busy with that, whenever nobody else wants it."""
        self.on_working: Callable[[], None] = lambda: None
        """Called after each change of `working`."""
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._log = log.get("sidecar")

    async def run(self) -> None:
        """Keep a process running until `stop`; returns at once where somebody else does."""
        if self._config is None:
            return
        try:
            self._make_directory()
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}: let uid {os.geteuid()} write there"
            self._log.error("no registry: its socket has no place", reason=reason)
            return
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = await self._one_life(self._config(self.socket))
            if self._stopping.is_set():
                break
            failures = 1 if time.monotonic() - started > HEALTHY_SECONDS else failures + 1
            pause = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]
            self._log.warning("registry down, restarting", reason=reason, pause=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def stop(self) -> None:
        """End the process, if it is ours."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            if process.returncode is None:
                process.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _make_directory(self) -> None:
        assert self._directory is not None
        self._directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(self._directory.parent)
        # Made by us before anybody could make it theirs: the name can't be guessed, and one that is there is refused.
        self._directory.mkdir(mode=0o700)

    async def _one_life(self, config: str) -> str:
        """Start a process and stay with it to its end; why it ended."""
        ours, theirs = socket.socketpair()
        # The process ends when our end closes, however we die.
        with ours, theirs:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    MODULE,
                    config,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    # Ctrl-C on our terminal is for us alone: we end it in order.
                    start_new_session=True,
                )
            except OSError as error:
                return f"it can't be started: {error.strerror}"
            theirs.close()
            self.pid = process.pid
            if self._stopping.is_set():
                # Asked while it was being started.
                process.terminate()
            try:
                code = await self._stay(process, ours)
            finally:
                self._become(working=False)
        return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _stay(self, process: asyncio.subprocess.Process, ours: socket.socket) -> int:
        """Hear what the process says of itself until it ends; its exit code."""
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._hear, ours)
        try:
            return await process.wait()
        finally:
            loop.remove_reader(ours.fileno())

    def _hear(self, ours: socket.socket) -> None:
        try:
            said = ours.recv(4096)
        except BlockingIOError:
            return
        if said:
            self._become(working=said.endswith(WORKS))
        else:
            asyncio.get_running_loop().remove_reader(ours.fileno())

    def _become(self, *, working: bool) -> None:
        if working != self.working:
            self.working = working
            self.on_working()


def _private_directory() -> Path:
    """A directory for this process's socket, yet to be made.

    A socket's path may have 107 bytes: where the usual place is too deep, the system's temporary directory is taken.
    """
    base = paths.runtime_dir()
    if len(os.fsencode(base)) > LONGEST:
        base = Path(tempfile.gettempdir())
    return base / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(base: Path) -> None:
    """Remove what servers that were killed have left: directories of ours, whose socket nobody listens on."""
    for path in base.glob(f"{PREFIX}*"):
        if OURS.fullmatch(path.name) and not _is_alive(path / SOCKET):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(listening: Path) -> bool:
    """Whether somebody listens there, or began too lately to be judged."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.connect(str(listening))
        return True
    try:
        return time.time() - listening.parent.stat().st_mtime < STARTING_SECONDS
    except OSError:
        return False
