"""Starts `forgelm serve` as a user would, and looks at what it leaves behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.program import FORGELM, environment

PATIENCE = 60.0
STARTER = "starter"
MODEST = ("--threads", "1", "--omp-wait", "passive", "--no-registry")
"""Beside other programs two threads that spin for each other are twenty times slower than one.

Tests that ask the registry something say `--registry`.
"""


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait until `condition` gives something true, and return that."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


class Served:
    """A running `forgelm serve`: its process, its engine's, its output, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], output: Path, errors: Path) -> None:
        self.process = process
        self._output = output
        self._errors = errors
        self.http = httpx.Client(timeout=PATIENCE, trust_env=False)

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """What it has written to stderr: its log and its last words."""
        return self._errors.read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log lines, parsed."""
        return [json.loads(line) for line in self.errors.splitlines() if line.startswith("{")]

    @property
    def words(self) -> list[str]:
        """Lines of stderr that are no log."""
        return [line for line in self.errors.splitlines() if line and not line.startswith("{")]

    @property
    def port(self) -> int:
        """The port it listens on; waits until it does."""
        return int(until(self._listening, f"it listens; so far: {self.errors}"))

    def _listening(self) -> int:
        assert self.process.poll() is None, self.errors
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        return next((c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN), 0)

    @property
    def base(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> int:
        """The engine's pid; waits for it."""
        return int(until(lambda: next(iter(self.children()), 0), "there is an engine process"))

    def children(self) -> list[int]:
        """Child processes that aren't dead."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def readiness(self) -> dict[str, Any]:
        """What `/readyz` says; `{}` while nobody answers."""
        try:
            answer = self.http.get(f"{self.base}/readyz")
        except httpx.TransportError:
            return {}
        body: dict[str, Any] = answer.json()
        assert (answer.status_code == 200) == (body["state"] == "ready")
        return body

    def ready(self) -> "Served":
        """Wait until it takes requests."""
        until(lambda: self.readiness().get("state") == "ready", "ready")
        return self

    def states_until_ready(self) -> list[dict[str, Any]]:
        """Every answer of `/readyz` up to the first "ready"."""
        states: list[dict[str, Any]] = []

        def ready() -> bool:
            states.append(self.readiness())
            return states[-1].get("state") == "ready"

        until(ready, "ready")
        return states

    def chat(self, content: str = "Say hello.", **fields: Any) -> httpx.Response:
        """A plain chat request."""
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
        return self.http.post(f"{self.base}/v1/chat/completions", json=body)

    @contextmanager
    def stream(self, content: str = "Say hello.", **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed chat request, as they come; `[DONE]` is `{"done": True}`."""
        body = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
        with self.http.stream("POST", f"{self.base}/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server alone."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(PATIENCE)


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            yield {"done": True}
        elif line.startswith("data: "):
            yield json.loads(line[6:])


@contextmanager
def serve(
    directory: Path, *flags: str, fake: dict[str, Any] | None = None, stderr: int | None = None, **variables: str
) -> Iterator[Served]:
    """`forgelm serve FLAGS` on a free port with the starter profile; `fake` are settings of a fake engine.

    `stderr` is a descriptor that its log goes to instead of a file.

    In the end it is killed if it still runs, and must have left no process behind.
    """
    output, errors = directory / "stdout", directory / "stderr"
    if fake is not None:
        variables["FORGELM_FAKE_ENGINE"] = json.dumps(fake)
    models = os.environ.get("FORGELM_MODELS")
    if models:
        variables.setdefault("FORGELM_MODELS", models)
    command = [*FORGELM, "serve", "--profile", STARTER, "--host", "127.0.0.1", "--port", "0", *MODEST, *flags]
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=stderr or err, text=True, env=environment(**variables)
        )
    served = Served(process, output, errors)
    seen: set[int] = set()
    try:
        yield served
        if process.poll() is None:
            seen.update(served.children())
    finally:
        served.http.close()
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        until(lambda: not any(map(alive, seen)), "its engine is gone")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
