"""A server of our own to measure: `forgelm serve` as a process on a free port, from its start to its end.

It runs exactly as the profile says: the `FORGELM_*` variables that would change that don't reach it. It has no registry
beside it and a key that nobody else knows. It ends with the block, and also when this process is killed.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import httpx
import psutil  # type: ignore[import-untyped]

from forgelm.bench.profile_file import profile_toml
from forgelm.config import Profile
from forgelm.errors import MachineError, ModelError

READY_SECONDS = 600.0
"""Reading a model of some gigabytes from a slow disk takes minutes."""
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
KEPT = ("FORGELM_MODELS", "FORGELM_PROFILES", "FORGELM_FAKE_ENGINE")
"""Variables that don't change a profile's settings."""
PROGRAM = "forgelm: "


class Serving:
    """A running server that has been ready once."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, key: str, log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.key = key
        """What requests must send as `Authorization: Bearer`."""
        self.origin = f"http://127.0.0.1:{port}"
        self.url = f"{self.origin}/v1"
        """What an OpenAI client calls the base URL."""

    @property
    def pid(self) -> int:
        """The API process; the engine is its child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the API process runs."""
        return self._process.poll() is None

    def log_end(self) -> str:
        """The last lines that the server and its children wrote, at most 4,000 bytes."""
        # They write at the file's position, which must not be moved.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def reason(self) -> str:
        """Its last words in one line: what it says when it can't start, else the last line it wrote."""
        lines = [line.strip() for line in self.log_end().splitlines() if line.strip()]
        said = [line.removeprefix(PROGRAM) for line in lines if line.startswith(PROGRAM)]
        return (said or lines or ["it said nothing"])[-1]

    def wait_ready(self, seconds: float) -> None:
        """Return when it takes requests. Raises `MachineError` with its reason when it can't."""
        until = time.monotonic() + seconds
        with httpx.Client(trust_env=False, timeout=5.0) as http:
            while time.monotonic() < until:
                if not self.alive:
                    raise MachineError(self.reason())
                if _ready(http, f"{self.origin}/readyz"):
                    return
                time.sleep(POLL_SECONDS)
        raise MachineError(f"the server wasn't ready within {seconds:.0f} s; its last line: {self.reason()}")

    def stop(self) -> None:
        """Ask it to end, then insist, its children included."""
        everyone = _tree(self.pid)
        try:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        finally:
            # Also when a second Ctrl-C doesn't wait for it.
            for process in everyone:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()


def _ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


@contextlib.contextmanager
def serving(
    profile: Profile,
    *,
    model: Path | None = None,
    overrides: Mapping[str, Any] = {},
    ready_seconds: float = READY_SECONDS,
) -> Iterator[Serving]:
    """Serve `profile` with `overrides` (`{"engine.n_ubatch": 256}`) laid over it, or `model` in its settings.

    Raises `ConfigError` for overrides that no profile can have, `ModelError` when the model's file isn't here,
    `MachineError` when the server can't start: each in one line, the last with the server's own reason.
    """
    settled = profile.with_overrides(dict(overrides))
    path = (model or settled.model.path()).expanduser().absolute()
    if not path.is_file():
        raise ModelError(f"no model file at {path}")
    key, port = secrets.token_urlsafe(16), free_port()
    with tempfile.TemporaryDirectory(prefix="forgelm-bench-") as folder, tempfile.TemporaryFile() as log:
        written = Path(folder) / "profile.toml"
        written.write_text(profile_toml(settled), encoding="utf-8")
        process = subprocess.Popen(
            _command(written, path, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(key),
            # Ctrl-C is for this process, which then ends the server.
            start_new_session=True,
        )
        server = Serving(process, port, key, log)
        try:
            server.wait_ready(ready_seconds)
            yield server
        finally:
            server.stop()


def _command(profile: Path, model: Path, port: int) -> list[str]:
    program = [sys.executable, "-m", "forgelm.bench.tied", str(os.getpid()), "--log-level", "warning", "serve"]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [*program, "--profile", str(profile), "--model", str(model), *where, "--no-registry", "--offline"]


def _environment(key: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGELM_") or name in KEPT}
    return {**kept, "FORGELM_API_KEY": key}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
