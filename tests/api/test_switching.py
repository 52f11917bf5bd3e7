"""Going over to another model, resting and waking: real engine processes, of which there is never more than one."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from forgelm.api.served import Launch, Target
from forgelm.errors import MachineError, ModelError, ModelNotFound
from forgelm.ipc.registry import Installed
from forgelm.supervisor import Phase
from tests.api.live import Live, Stream, engine_command, profile_with, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

QUICK: dict[str, Any] = {"step": 0.002, "load": 0.1}
SLOW: dict[str, Any] = {"step": 0.02, "slots": 2}
COUNTED: dict[str, Any] = {"stream_options": {"include_usage": True}}
FIRST = "smollm2-135m-instruct"


class Models:
    """A launcher of several models that differ by name and by how their fake engine behaves."""

    def __init__(self, path: Path, **fakes: dict[str, Any]) -> None:
        self._path = path
        self._fakes = fakes
        self.launched: list[str] = []
        self.overlaps = 0
        """Launches while another engine was there."""
        self.live: Live | None = None
        self.refuses: set[str] = set()
        """What doesn't fit."""
        self.refusal: Exception | None = None
        """What else is wrong with it."""

    def resolve(self, name: str, installed: Installed | None) -> Target:
        """The model `name`, if there is one."""
        if name == "broken":
            raise ModelError("it is no model")
        if name not in (*self._fakes, FIRST):
            raise ModelNotFound(f"there is no model {name!r} here", param="model")
        profile = profile_with()
        if name != FIRST:
            source = msgspec.structs.replace(profile.model, id=name)
            engine = msgspec.structs.replace(profile.engine, context=4096 + len(name))
            profile = msgspec.structs.replace(profile, name=name, model=source, engine=engine)
        return Target(profile, self._path, frozenset((name, profile.name)))

    def launch(self, target: Target, reserved: int = 0) -> Launch:
        """Its command; notes whether an engine is still there."""
        name = target.profile.model.id
        self.launched.append(name)
        assert self.live is not None
        self.overlaps += any(map(_runs, self.live.engines))
        if name in self.refuses:
            raise self.refusal or MachineError(f"{name} doesn't fit")
        return Launch(target, target.profile, engine_command(target.profile, self._path, self._fakes.get(name, QUICK)))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Switching:
    """A server with several models, and requests to it from several threads."""

    def __init__(self, live: Live, models: Models) -> None:
        self.live = live
        self.models = models
        self._threads = ThreadPoolExecutor(16)

    def ask(self, model: str = "", **fields: Any) -> "Future[httpx.Response]":
        """A plain request in a thread of its own."""
        named = {"model": model} if model else {}
        return self._threads.submit(self.live.chat, **{"max_tokens": 3, **named, **fields})

    def stream(self, **fields: Any) -> "Future[Stream]":
        """A streamed one."""
        return self._threads.submit(self.live.stream, **fields)

    def load(self, model: str) -> "Future[httpx.Response]":
        """An explicit change."""
        return self._threads.submit(self.live.post, "/v1/models/load", {"model": model})

    def loaded(self) -> list[str]:
        """Models that `/v1/models` says are loaded."""
        self.note()
        return [each["id"] for each in self.live.http.get("/v1/models").json()["data"] if each["loaded"]]

    def note(self) -> None:
        """Remember the present engine's pid."""
        if self.live.service.switcher.current is not None:
            until(lambda: self.live.service.switcher.current is None or self.live.supervisor.pid, "it has a pid")

    def gate_closed(self) -> bool:
        """Whether a change goes on."""
        return self.live.service.switcher._gate.locked()


@contextmanager
def switching(path: Path, policy: dict[str, Any] | None = None, **fakes: dict[str, Any]) -> Iterator[Switching]:
    """A server that begins with `FIRST` and knows `fakes` as well."""
    models = Models(path, **fakes)
    first = fakes.get("first", QUICK)
    with running(path, fake=first, launcher=models, switching={"on_request": True, **(policy or {})}) as live:
        models.live = live
        server = Switching(live, models)
        server.note()
        yield server
        server._threads.shutdown()
        assert models.overlaps == 0, "two engines at once"


def test_a_request_changes_the_model(starter_path: Path) -> None:
    with switching(starter_path, other=QUICK) as server:
        answer = server.ask("other").result()
        assert (answer.status_code, answer.json()["model"]) == (200, "other")
        assert server.loaded() == ["other"]
        assert server.ask().result().json()["model"] == "other", "one that names none takes what there is"
        assert server.ask(FIRST).result().json()["model"] == FIRST
        assert server.models.launched == ["other", FIRST]
        assert server.live.http.get("/readyz").json()["restarts"] == 0, "a change is no restart"


def test_requests_change_nothing_unless_that_is_allowed(starter_path: Path) -> None:
    with switching(starter_path, {"on_request": False}, other=QUICK) as server:
        error = server.ask("other").result().json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "/v1/models/load" in error["message"]
        answer = server.load("other").result()
        assert (answer.status_code, answer.json()["id"], answer.json()["loaded"]) == (200, "other", True)
        assert server.ask("other").result().status_code == 200
        assert server.ask(FIRST).result().status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "nothing"}, 404, "model"),
        ({"model": "broken"}, 503, None),
        ({"model": ""}, 400, "model"),
        ({"model": 3}, 400, "model"),
        ({}, 400, "model"),
        (b"{", 400, None),
    ],
)
def test_loads_that_are_refused(starter_path: Path, body: Any, status: int, param: str | None) -> None:
    with switching(starter_path) as server:
        answer = server.live.post("/v1/models/load", body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert server.loaded() == [FIRST]
        server.live.lives()


def test_what_runs_and_what_waits_is_answered_before_the_model_goes(starter_path: Path) -> None:
    with switching(starter_path, first=SLOW, other=QUICK) as server:
        running_ones = [server.stream(max_tokens=60, **COUNTED) for _ in range(4)]
        until(lambda: server.live.gauges()[:2] == (2, 2), "two run and two wait")
        change = server.ask("other")
        until(server.gate_closed, "the change goes on")
        late = server.ask(FIRST)
        for each in running_ones:
            stream = each.result()
            assert stream.done
            assert stream.events[-1]["usage"]["completion_tokens"] == 60
        assert change.result().json()["model"] == "other"
        assert late.result().json()["model"] == FIRST
        assert server.models.launched == ["other", FIRST]


def test_what_waits_is_refused_where_the_policy_says_so(starter_path: Path) -> None:
    with switching(starter_path, {"waiting": "refuse"}, first=SLOW, other=QUICK) as server:
        running_ones = [server.stream(max_tokens=60, **COUNTED) for _ in range(2)]
        until(lambda: server.live.gauges()[0] == 2, "two run")
        waiting = server.ask()
        until(lambda: server.live.gauges()[1] == 1, "one waits")
        change = server.load("other")
        refused = waiting.result()
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        late = server.live.chat()
        assert (late.status_code, late.headers["Retry-After"]) == (503, "5")
        assert all(each.result().done for each in running_ones)
        assert change.result().status_code == 200


def test_answers_that_outlast_the_drain_are_told_so(starter_path: Path) -> None:
    with switching(starter_path, {"drain_seconds": 0.3}, first=SLOW, other=QUICK) as server:
        endless = server.stream(max_tokens=6000)
        until(lambda: server.live.gauges()[0] == 1, "it runs")
        assert server.load("other").result().status_code == 200
        events = endless.result().events
        assert "unloaded" in events[-1]["error"]["message"]
        server.live.lives()


def test_clients_with_different_models_take_turns(starter_path: Path) -> None:
    """None of them starves, though both go on asking."""
    with switching(starter_path, other=QUICK) as server:
        answered: dict[str, int] = {}

        def go_on(model: str) -> None:
            for _ in range(4):
                answer = server.live.chat(model=model, max_tokens=2)
                assert (answer.status_code, answer.json()["model"]) == (200, model)
                answered[model] = answered.get(model, 0) + 1

        clients = [threading.Thread(target=go_on, args=(model,)) for model in (FIRST, "other", FIRST, "other")]
        for each in clients:
            each.start()
        for each in clients:
            each.join(60)
        assert answered == {FIRST: 8, "other": 8}


def test_a_model_that_does_not_load_leaves_the_old_one(starter_path: Path) -> None:
    with switching(starter_path, ill={"fail_load": "its file is damaged"}, large=QUICK) as server:
        server.models.refuses = {"large"}
        for name, reason in (("ill", "its file is damaged"), ("large", "large doesn't fit")):
            answer = server.ask(name).result()
            assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
            assert reason in answer.json()["error"]["message"]
            assert server.loaded() == [FIRST]
            server.live.lives()
        launched = list(server.models.launched)
        assert server.ask("ill").result().status_code == 503
        assert server.models.launched == launched, "what has just failed isn't tried again at once"


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file or directory", "x.gguf"), RuntimeError("a bug")])
def test_whatever_goes_wrong_the_old_model_comes_back(starter_path: Path, error: Exception) -> None:
    """Such as a file that is taken away while the old model's answers are waited for."""
    with switching(starter_path, large=QUICK) as server:
        server.models.refuses, server.models.refusal = {"large"}, error
        answer = server.ask("large").result()
        assert answer.status_code == 503
        assert ("x.gguf: No such file" if isinstance(error, OSError) else "a bug") in answer.json()["error"]["message"]
        assert server.loaded() == [FIRST]
        server.live.lives()


def test_a_model_that_could_not_be_woken_is_tried_again(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another program had its memory for a while."""
    with switching(starter_path, {"idle_seconds": 0.3, "on_request": False}) as server:
        until(lambda: _unloaded(server.live), "it rests")
        server.models.refuses = {FIRST}
        assert server.ask().result().status_code == 503
        launched = len(server.models.launched)
        assert server.ask(FIRST).result().status_code == 503
        assert len(server.models.launched) == launched, "not at every request"
        server.models.refuses = set()
        monkeypatch.setattr("forgelm.api.switching.FAILURE_SECONDS", 0.0)
        assert server.ask(FIRST).result().status_code == 200


def test_a_failure_of_long_ago_is_forgotten(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with switching(starter_path, other=QUICK, ill={"fail_load": "its file is damaged"}) as server:
        monkeypatch.setattr("forgelm.api.switching.FAILURE_SECONDS", 0.0)
        server.models.refuses = {"other"}
        assert server.ask("other").result().status_code == 503
        server.models.refuses = set()
        assert server.ask("other").result().status_code == 200
        monkeypatch.undo()
        assert server.ask("ill").result().status_code == 503
        assert server.loaded() == ["other"]


def test_nobody_waits_while_somebody_elses_name_is_looked_up(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry yields to everybody, and may be slow."""
    with switching(starter_path) as server:

        async def slowly(_: str) -> None:
            await asyncio.sleep(1.0)

        monkeypatch.setattr(server.live.service._loader, "_find", slowly)
        unknown = server.ask("claude-x")
        until(lambda: server.live.service.switcher._waiting == 1, "it is looked up")
        assert not server.gate_closed()
        server.live.lives()
        assert not unknown.done()
        assert unknown.result().json()["error"]["code"] == "model_not_found"
        monkeypatch.setattr("forgelm.api.loading.FIND_SECONDS", 0.1)
        busy = server.ask("claude-x").result()
        assert (busy.status_code, "Retry-After" in busy.headers) == (503, True)


def test_who_waits_too_long_is_told_so(starter_path: Path) -> None:
    models = Models(starter_path, other={"load": 3.0})
    with running(
        starter_path, fake=QUICK, launcher=models, limits={"queue_seconds": 0.5}, switching={"on_request": True}
    ) as live:
        models.live = live
        answer = live.chat(model="other")
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
        assert "waited" in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "queue_timeout"
        until(lambda: live.service.status.phase is Phase.READY and live.service.model_id == "other", "it goes on")
        assert live.supervisor.pid


def test_without_a_way_back_the_reason_is_told(starter_path: Path) -> None:
    with switching(starter_path, ill={"fail_load": "its file is damaged"}) as server:
        server.models.refuses = {FIRST}
        assert server.ask("ill").result().status_code == 503
        ready = server.live.http.get("/readyz")
        assert (ready.status_code, ready.json()["state"]) == (503, "failed")
        assert "doesn't fit" in server.ask().result().json()["error"]["message"]
        server.models.refuses = set()
        assert server.load(FIRST).result().status_code == 200
        server.live.lives()


def test_an_idle_model_rests_and_is_woken(starter_path: Path) -> None:
    with switching(starter_path, {"idle_seconds": 0.5}) as server:
        pid = server.live.supervisor.pid
        state = until(lambda: _unloaded(server.live), "it rests")
        assert state["model"] == FIRST
        assert not _runs(pid)
        assert server.loaded() == []
        assert server.live.http.get("/health").status_code == 200
        answers = [server.ask() for _ in range(4)]
        assert [each.result().status_code for each in answers] == [200] * 4
        assert server.models.launched == [FIRST], "one of them woke it"
        until(lambda: _unloaded(server.live), "it rests again")


def _unloaded(live: Live) -> dict[str, Any] | None:
    answer = live.http.get("/readyz")
    body: dict[str, Any] = answer.json()
    return body if (answer.status_code, body["state"]) == (200, "unloaded") else None


def test_a_model_in_use_does_not_rest(starter_path: Path) -> None:
    with switching(starter_path, {"idle_seconds": 0.2}, first=SLOW) as server:
        stream = server.stream(max_tokens=120, **COUNTED).result()
        assert stream.events[-1]["usage"]["completion_tokens"] == 120


def test_unloading_at_once(starter_path: Path) -> None:
    with switching(starter_path, {"on_request": False}) as server:
        answer = server.live.post("/v1/models/unload")
        assert (answer.status_code, [each["loaded"] for each in answer.json()["data"]]) == (200, [False])
        server.live.lives()
        assert server.loaded() == [FIRST]


def test_who_leaves_the_queue_changes_nothing(starter_path: Path) -> None:
    with switching(starter_path, first=SLOW, other=QUICK, third=QUICK) as server:
        stream = server.stream(max_tokens=100)
        until(lambda: server.live.gauges()[0] == 1, "it runs")
        change = server.ask("other")
        until(server.gate_closed, "the change goes on")
        raw = Raw(server.live.port).chat(model="third")
        until(lambda: server.live.service.switcher._waiting == 2, "it waits")
        raw.leave()
        until(lambda: server.live.service.switcher._waiting == 1, "it has left")
        assert stream.result().done
        assert change.result().status_code == 200
        server.live.lives()
        assert server.models.launched == ["other"]


def test_too_many_wait(starter_path: Path) -> None:
    models = Models(starter_path, other=QUICK)
    limits = {"queue": 2}
    with running(starter_path, fake=SLOW, launcher=models, limits=limits, switching={"on_request": True}) as live:
        models.live = live
        server = Switching(live, models)
        stream = server.stream(max_tokens=60, **COUNTED)
        until(lambda: live.gauges()[0] == 1, "it runs")
        asked = [server.ask("other") for _ in range(2)]
        until(lambda: live.gauges()[1] == 2, "two wait")
        assert live.http.get("/status").json()["waiting"] == 2
        refused = server.ask("other").result()
        assert (refused.status_code, "Retry-After" in refused.headers) == (429, True)
        assert stream.result().done
        assert [each.result().status_code for each in asked] == [200, 200]


@pytest.mark.parametrize("moment", [0.0, 0.15, 0.4])
def test_the_end_during_a_change(starter_path: Path, moment: float) -> None:
    """No engine is left, whichever of the two was there (`running` looks)."""
    with switching(starter_path, other={"load": 0.5}) as server:
        raw = Raw(server.live.port).chat(model="other")
        until(server.gate_closed, "the change goes on")
        time.sleep(moment)
        raw.leave()
        if server.live.service.switcher.current is not None:
            server.note()


def test_a_crash_during_the_drain_lets_the_change_go_on(starter_path: Path) -> None:
    with switching(starter_path, first={"step": 0.02, "crash_at": 20}, other=QUICK) as server:
        stream = server.stream(max_tokens=500)
        until(lambda: server.live.gauges()[0] == 1, "it runs")
        assert server.load("other").result().json()["id"] == "other"
        assert "error" in stream.result().events[-1]
