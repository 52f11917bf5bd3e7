"""A running server for tests: the real app on uvicorn and a socket, in a thread, with a real (fake) engine process.

Only the engine's tokens are made up, unless it is to be `real`. The model file gives the vocabulary and the template.
"""

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import structlog
from prometheus_client.parser import text_string_to_metric_families

from forgelm.api.metrics_server import UNCHANGED, Scraping
from forgelm.api.served import Launch, Launcher, Served, Target, TextSide
from forgelm.api.server import ApiServer, listen
from forgelm.api.service import Beside, Service, Setup
from forgelm.config import Profile
from forgelm.errors import ModelNotFound
from forgelm.ipc.registry import Installed
from forgelm.ipc.start import EngineConfig
from forgelm.sidecar import Sidecar
from forgelm.supervisor import Command, Phase, Supervisor
from tests.models import starter_profile

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
WAIT_SECONDS = 15.0
"""How long something that should be at once may take on a loaded machine."""


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until `condition` gives something true, and return that."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.01)


def message(content: Any, **fields: Any) -> dict[str, Any]:
    """A chat request's body with one user message."""
    return {"messages": [{"role": "user", "content": content}], **fields}


@dataclass
class Stream:
    """Everything that one streamed answer consisted of."""

    response: httpx.Response
    events: list[dict[str, Any]] = field(default_factory=list)
    pings: int = 0
    done: bool = False
    """`[DONE]` came, and nothing after it."""

    @classmethod
    def read(cls, response: httpx.Response) -> "Stream":
        """Read it to its end. Fails on anything that isn't an event, a comment or a blank line."""
        stream = cls(response)
        # Not `iter_lines`, which also ends lines at U+2028: those are text here.
        for line in response.read().decode().split("\n"):
            assert not stream.done or not line, f"after [DONE]: {line!r}"
            if line == "data: [DONE]":
                stream.done = True
            elif line.startswith("data: "):
                stream.events.append(json.loads(line.removeprefix("data: ")))
            elif line.startswith(":"):
                stream.pings += 1
            else:
                assert not line, f"neither event nor comment: {line!r}"
        return stream

    @property
    def text(self) -> str:
        """All deltas joined."""
        return "".join(self.deltas)

    @property
    def deltas(self) -> list[str]:
        """Text by text; tokens that came while the reader was busy are merged."""
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        return [choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices]

    @property
    def finish(self) -> str | None:
        """The one finish reason."""
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert len(reasons) <= 1, reasons
        return reasons[0] if reasons else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object, which must be the last event."""
        errors = [event["error"] for event in self.events if "error" in event]
        assert not errors or "error" in self.events[-1]
        return errors[0] if errors else None


class Live:
    """One running server, and requests to it."""

    def __init__(self, server: ApiServer, port: int) -> None:
        self.server = server
        self.service: Service = server.service
        self.port = port
        self.engines: set[int] = set()
        """Pids of all engines that there were."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False)

    @property
    def served(self) -> Served:
        """The model that is loaded."""
        current = self.service.switcher.current
        assert current is not None, "no model is loaded"
        self.engines.add(current.supervisor.pid)
        return current

    @property
    def text(self) -> TextSide:
        """Its text side."""
        return self.served.text

    @property
    def supervisor(self) -> Supervisor:
        """Its engine's."""
        return self.served.supervisor

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """POST `body`: JSON if it is a dict, as it is if bytes."""
        if body is not None:
            options["content" if isinstance(body, bytes) else "json"] = body
        return self.http.post(path, **options)

    def chat(self, content: Any = "Hello there", **fields: Any) -> httpx.Response:
        """A plain chat request."""
        return self.post(CHAT, message(content, **fields))

    def stream(self, content: Any = "Hello there", **fields: Any) -> Stream:
        """A streamed chat request, read to its end."""
        return self.stream_of(CHAT, message(content, **fields))

    def stream_of(self, path: str, body: dict[str, Any]) -> Stream:
        """A streamed request, read to its end."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                raise AssertionError(f"{response.status_code}: {response.text}")
            return Stream.read(response)

    def lives(self) -> None:
        """A plain request is answered: nothing that came before has broken the server."""
        answer = self.chat("Are you there?", max_tokens=2)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 2

    def metric(self, name: str, **labels: str) -> float:
        """One sample of `/metrics`; 0 for one that isn't there yet."""
        text = self.http.get("/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels.items() >= labels.items():
                    return float(sample.value)
        return 0.0

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """All samples of `/metrics` with this name, by their labels."""
        text = self.http.get("/metrics").text
        return {
            tuple(sorted(sample.labels.items())): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def stop(self) -> None:
        """Begin to end the server, as a signal does."""
        self.server.stop()

    def on_loop(self, action: Callable[[], object]) -> None:
        """Run `action` on the server's event loop, soon. Once it has been ready."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(action)

    def gauges(self) -> tuple[float, float, float]:
        """Requests running, waiting and open."""
        running, waiting, opened = (self.metric(f"forgelm_requests_{what}") for what in ("running", "waiting", "open"))
        return running, waiting, opened

    def idle(self) -> None:
        """Wait until nothing runs, waits or is open."""
        until(lambda: self.gauges() == (0, 0, 0), "all gauges back to 0")


def profile_with(**limits: Any) -> Profile:
    """The starter profile with other limits."""
    profile = starter_profile()
    return msgspec.structs.replace(profile, limits=msgspec.structs.replace(profile.limits, **limits))


def engine_command(profile: Profile, model: Path, fake: dict[str, Any] | None) -> Command:
    """Starts the fake engine, or the real one without `fake`."""
    config = EngineConfig(str(model), profile.engine, 1, log_level="warning", cache=profile.cache)
    environment = {} if fake is None else {"FORGELM_FAKE_ENGINE": json.dumps(fake)}
    return Command("forgelm.engine.main", msgspec.json.encode(config).decode(), environment)


@contextmanager
def running(
    model: Path,
    *,
    fake: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    cache: dict[str, Any] | None = None,
    real: bool = False,
    keys: tuple[str, ...] = (),
    wait: bool = True,
    send_buffer: int = 0,
    launcher: Launcher | None = None,
    sidecar: Sidecar | None = None,
    beside: Sequence[Beside] = (),
    switching: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    scraping: Scraping = UNCHANGED,
) -> Iterator[Live]:
    """A server from start to end; `fake` are `FakeSettings`, `limits`, `cache` and `metrics` the profile's.

    `real`: with the real engine. `wait`: until it is ready.
    """
    if not structlog.is_configured():
        # Lines come after the test that they are of, when nothing captures them.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    profile = profile_with(**(limits or {}))
    profile = msgspec.structs.replace(
        profile,
        cache=msgspec.structs.replace(profile.cache, **(cache or {})),
        switching=msgspec.structs.replace(profile.switching, **(switching or {})),
        metrics=msgspec.structs.replace(profile.metrics, **(metrics or {})),
    )
    command = engine_command(profile, model, None if real else {"step": 0.002, **(fake or {})})

    def remember_loop(_: Service) -> None:
        live.loop = asyncio.get_running_loop()
        live.engines.add(live.supervisor.pid)

    target = Target(profile, model, frozenset((profile.model.id, profile.name)))
    first = Launch(target, profile, command)
    setup = Setup(first, launcher or Fixed(first), sidecar, beside)
    server = ApiServer(setup, api_keys=keys, scraping=scraping, on_ready=remember_loop)
    listener = listen("127.0.0.1", 0)
    listener.listen()
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            server.run(listener)
        except BaseException as error:  # noqa: BLE001  handed to the test
            failures.append(error)

    live = Live(server, listener.getsockname()[1])
    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        if wait:
            until(lambda: failures or server.service.status.phase is Phase.READY, "the engine is ready")
        yield live
    finally:
        live.http.close()
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
        assert not any(map(_exists, live.engines)), "an engine process is still there"
    assert not failures, failures


class Fixed:
    """A launcher that knows one model."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def resolve(self, name: str, installed: Installed | None) -> Target:
        """The one, if it is meant."""
        if name not in self._launch.target.names:
            raise ModelNotFound(f"there is no model {name!r} here", param="model")
        return self._launch.target

    def launch(self, target: Target, reserved: int = 0) -> Launch:
        """As at the start."""
        return self._launch


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pid != 0
