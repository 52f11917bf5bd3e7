"""Starts, watches and stops one server under test: ForgeLM, llama-server or another, with equal settings.

All get the same model file, threads, context and slots. The rest of llama-server's flags depends on what is measured:
see `PEER_FLAGS`; how the others are started is in `bench.opponents`.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench import machine
from bench.sse import AnswerError, Endpoint, complete
from forgelm import paths
from forgelm.profiles import load_profile

READY_TIMEOUT = 120.0
STOP_TIMEOUT = 20.0
POLL = 0.01
PEER_FLAGS: dict[str, tuple[str, ...]] = {
    "unique": ("--kv-unified", "--no-cache-prompt", "--cache-ram", "0"),
    "default": (),
    "best": ("--cache-ram", "0", "--cache-reuse", "16", "--batch-size", "512"),
}
"""Sets of flags for llama-server.

- `unique`, for prompts that never repeat: one shared KV pool, which is what ForgeLM has, and no prompt cache, in slots
  or in RAM, which can't help and would only cost it copies.
- `default`: as it comes. Slots have an equal part of the context each and keep their last prompt; those that fall idle
  are copied to RAM.
- `best`, for prompts that begin alike and fit the slots. Nothing makes slots share what one of them has computed, so
  this is about cost: no copies to RAM, since each slot still has what it needs (unified, the pool would be emptied
  into RAM at each request, and decoding would visit every slot's cells); batches that end after the first prompt
  instead of the fifth, so that its answer begins; and text after a difference is moved, not computed (no hybrid can).
"""
REPOSITORY = Path(__file__).resolve().parent.parent


class ServerError(Exception):
    """A server did not start, or died; the message has the end of its log."""


@dataclass(frozen=True)
class Settings:
    """What both servers are told."""

    model: Path
    threads: int = 2
    context: int = 8192
    parallel: int = 8


def default_model() -> Path:
    """The starter's file, where `forgelm pull starter` puts it."""
    return load_profile("starter").model.path()


@dataclass(frozen=True)
class Kind:
    """How one server is started and asked."""

    name: str
    command: tuple[str, ...]
    """Without the port, which is appended as `--port N`; empty for a server that runs already."""
    ready_path: str
    extra: dict[str, object] = field(default_factory=dict)
    """Fields of its requests that the other doesn't know."""
    environment: dict[str, str] = field(default_factory=dict)
    """Laid over this process's own."""
    config: str = ""
    """A file that is written for it, `PORT` in it being its port; then its name is appended instead of the port."""
    address: Endpoint | None = None
    """Of a server that runs already."""

    def arguments(self, port: int, directory: Path) -> list[str]:
        """The whole command; its file, if it has one, is written into `directory`."""
        if not self.config:
            return [*self.command, "--port", str(port)]
        path = directory / "config.json"
        path.write_text(self.config.replace("PORT", str(port)))
        return [*self.command, str(path)]


def forgelm(settings: Settings) -> Kind:
    """This repository's server, run by this Python."""
    return _forgelm(settings, "starter", {})


def forgelm_with_disk(settings: Settings, directory: Path) -> Kind:
    """The same with the disk tier, all of whose files lie in `directory`: servers that get another share nothing."""
    profile = directory / "starter.toml"
    shipped = (paths.shipped_profiles_dir() / "starter.toml").read_text()
    profile.write_text(f"{shipped}\n[cache]\ndisk_tier = true\n")
    return _forgelm(settings, str(profile), {"XDG_CACHE_HOME": str(directory)})


def forgelm_speculating(settings: Settings, speculation: str, directory: Path) -> Kind:
    """The same with the profile's `speculation` as TOML; the profile is written into `directory`."""
    shipped = (paths.shipped_profiles_dir() / "starter.toml").read_text()
    text, found = re.subn(r"(?m)^speculation = .*$", lambda _: f"speculation = {speculation}", shipped)
    assert found == 1
    profile = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.toml"
    profile.write_text(text)
    return _forgelm(settings, str(profile), {})


def _forgelm(settings: Settings, profile: str, environment: dict[str, str]) -> Kind:
    options = {
        "--profile": profile,
        "--model": settings.model,
        "--host": "127.0.0.1",
        "--parallel": settings.parallel,
        "--context": settings.context,
        "--threads": settings.threads,
    }
    command = (sys.executable, "-m", "forgelm", "serve", *flat(options))
    return Kind("forgelm", command, "/readyz", environment=environment)


def llama_server(settings: Settings, program: Path, flags: str = "unique", more: Sequence[str] = ()) -> Kind:
    """llama.cpp's server, from `bench.peers`, with one of the sets of flags, and `more` flags."""
    options = {
        "--model": settings.model,
        "--host": "127.0.0.1",
        "--parallel": settings.parallel,
        "--ctx-size": settings.context,
        "--threads": settings.threads,
        "--threads-batch": settings.threads,
    }
    command = (str(program), *flat(options), "--no-ui", "--offline", *PEER_FLAGS[flags], *more)
    return Kind("llama-server", command, "/health", {"cache_prompt": False} if flags == "unique" else {})


def flat(options: Mapping[str, object]) -> Sequence[str]:
    """Names and values of flags, one after another."""
    return [str(part) for pair in options.items() for part in pair]


@dataclass
class Server:
    """A running server."""

    kind: Kind
    process: subprocess.Popen[bytes]
    port: int
    log: IO[bytes]
    spawned: float
    """`time.perf_counter()` just before the process was started."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.port, dict(self.kind.extra))

    @property
    def engine(self) -> int:
        """The process that holds the model: the largest child, or the server itself where it has none."""
        api, *children = machine.tree(self.process.pid)
        return max(children, key=lambda pid: machine.memory_mb(pid)["rss"], default=api)

    def memory_mb(self) -> dict[str, float]:
        """Memory of the process that holds the model and of the one that answers HTTP, which may be the same."""
        processes = {"api": self.process.pid, "engine": self.engine}
        return {
            f"{role}_{name}_mb": value
            for role, pid in processes.items()
            for name, value in machine.memory_mb(pid).items()
        }

    def wait_ready(self) -> None:
        """Poll until the server says that it is ready. Raises `ServerError`."""
        url = f"http://127.0.0.1:{self.port}{self.kind.ready_path}"
        until = time.perf_counter() + READY_TIMEOUT
        while time.perf_counter() < until:
            if self.process.poll() is not None:
                raise ServerError(f"{self.kind.name} ended with status {self.process.returncode}\n{self.log_end()}")
            if _answers(url):
                return
            time.sleep(POLL)
        raise ServerError(f"{self.kind.name} was not ready in {READY_TIMEOUT:.0f} s\n{self.log_end()}")

    def log_end(self) -> str:
        """The last lines the server and its children wrote."""
        # The children write at the same file position, so it must not be moved.
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), 2000, max(0, size - 2000)).decode(errors="replace")

    def stop(self) -> None:
        """Ask it to end, then insist, its children included."""
        pids = machine.tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def running(kind: Kind) -> Iterator[Server]:
    """A server from its start to its end, ready to answer."""
    port = free_port()
    environment = {**os.environ, **kind.environment}
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as directory:
        command = kind.arguments(port, Path(directory))
        spawned = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=environment,
        )
        server = Server(kind, process, port, log, spawned)
        try:
            server.wait_ready()
            yield server
        except AnswerError as error:
            raise ServerError(f"{kind.name}: {error}\n{server.log_end()}") from error
        finally:
            server.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        # Refused, reset, timed out, or a status over 399: not ready yet.
        return False


def end_on_signals() -> None:
    """Let SIGINT and SIGTERM unwind the stack as `KeyboardInterrupt`, so that no server is left behind.

    Python ends on SIGTERM without that, and a shell starts background jobs with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def first_token_seconds(server: Server) -> float:
    """Seconds from the start of the process to the first streamed token of its first request."""
    answer = asyncio.run(complete(server.endpoint, "Once upon a time", 4))
    return answer.arrivals[0] - server.spawned
