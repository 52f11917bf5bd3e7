"""Probes tell the engine's state, whatever it is, and the API tells clients the same."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forgelm import supervisor
from forgelm.ipc.messages import Loading
from forgelm.supervisor import Phase
from tests.api.live import CHAT, TEXT, Live, message, running, until

pytestmark = pytest.mark.server


def readiness(server: Live) -> tuple[int, dict[str, Any]]:
    answer = server.http.get("/readyz")
    return answer.status_code, answer.json()


def refused(server: Live) -> dict[str, Any]:
    """What a request gets while there is no engine."""
    answer = server.post(CHAT, message("Hi", max_tokens=1, stream=True))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error: dict[str, Any] = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
    return error


def test_ready(live: Live) -> None:
    status, body = readiness(live)
    assert status == 200
    assert body == {
        "state": "ready",
        "model": "smollm2-135m-instruct",
        "restarts": 0,
        "drafters": [],
        "draft_depth": 0,
        "description": "fake engine",
        "devices": ["fake"],
        "context": 8192,
        "slots": 8,
        "kv_type": "f16",
        "llama_cpp": "fake",
    }
    assert live.http.get("/health").json() == {"status": "ok"}
    assert live.http.get("/livez").json() == {"status": "alive"}


def test_loading(starter_path: Path) -> None:
    """Alive at once; ready when the model is; a percentage between."""
    with running(starter_path, fake={"load": 1.5}, wait=False) as server:
        until(lambda: server.service.switcher.current and server.supervisor.pid, "the engine process is there")
        assert server.http.get("/livez").status_code == 200
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/v1/models").json()["data"][0]["context_length"] == 8192
        assert readiness(server) == (
            503,
            {"state": "loading", "model": "smollm2-135m-instruct", "restarts": 0, "percent": 0.0},
        )
        server.supervisor._on_message(Loading(0.4239))
        assert readiness(server)[1]["percent"] == 42.4
        assert "loading (42 %)" in refused(server)["message"]
        until(lambda: readiness(server)[0] == 200, "ready")
        server.lives()


def test_stopping_while_the_model_loads(starter_path: Path) -> None:
    """The engine reads no messages while it loads: waiting for it to drain took the whole drain time, for nothing."""
    with running(starter_path, fake={"load": 60}, wait=False) as server:
        until(lambda: server.service.switcher.current and server.supervisor.pid, "the engine process is there")


def test_a_crash_restarts_the_engine(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.7,))
    with running(starter_path, fake={"crash_at": 4}) as server:
        stream = server.stream(max_tokens=50)
        assert stream.error
        assert stream.error["code"] == "engine_error"
        assert "signal 9" in stream.error["message"]
        assert not stream.done
        until(lambda: readiness(server)[1]["state"] == "restarting", "the pause before the restart")
        status, body = readiness(server)
        assert (status, body["restarts"]) == (503, 1)
        assert "signal 9" in body["reason"]
        assert "restarting" in refused(server)["message"]
        until(lambda: readiness(server)[0] == 200, "ready again")
        assert "reason" not in readiness(server)[1]
        assert server.metric("forgelm_engine_restarts_total") == 1
        assert server.gauges() == (0, 0, 0)
        server.lives()


def test_a_crash_answers_everyone(starter_path: Path) -> None:
    """Who streams gets an error in the stream, who waits for a whole answer gets a 503, and so does the queue."""
    # The first request is two steps old when the others come, so the engine dies with all of them in it.
    with running(starter_path, fake={"crash_at": 40, "slots": 2, "step": 0.02}) as server, ThreadPoolExecutor() as pool:
        streams = [pool.submit(server.stream, max_tokens=4000) for _ in range(2)]
        until(lambda: server.gauges()[0] == 2, "both run")
        whole = [pool.submit(server.chat, max_tokens=4000) for _ in range(2)]
        queued = pool.submit(server.stream, max_tokens=4000)
        assert all(future.result().error for future in streams)
        assert queued.result().error
        for answer in (future.result() for future in whole):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_error")
            assert answer.headers["retry-after"]
        assert server.metric("forgelm_errors_total", code="engine_error") == 5
        assert server.metric("forgelm_requests_total", reason="error") == 5
        server.idle()


def test_a_crash_loop_stops_with_the_reason(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))
    monkeypatch.setattr(supervisor, "CRASH_LIMIT", 3)
    with running(starter_path, fake={"crash_at": 1}) as server:
        for _ in range(3):
            assert server.stream(max_tokens=5).error
            until(lambda: readiness(server)[1]["state"] in ("ready", "failed"), "up again, or given up")
        status, body = readiness(server)
        assert (status, body["state"], body["restarts"]) == (503, "failed", 3)
        assert "3 times in a row" in body["reason"]
        assert "signal 9" in refused(server)["message"]
        assert server.http.get("/health").json() == {"status": "failed"}
        assert server.http.get("/livez").status_code == 200


def test_crashes_long_apart_are_no_loop(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))
    monkeypatch.setattr(supervisor, "CRASH_LIMIT", 2)
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    with running(starter_path, fake={"crash_at": 1}) as server:
        for _ in range(4):
            assert server.stream(max_tokens=5).error
            until(lambda: readiness(server)[1]["state"] == "ready", "up again")


def test_a_slow_load_is_not_a_healthy_life(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes a minute to load and dies at its first step was restarted for ever: its life counted from
    the start of the load."""
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))
    monkeypatch.setattr(supervisor, "CRASH_LIMIT", 2)
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.5)
    with running(starter_path, fake={"crash_at": 1, "load": 0.6}) as server:
        for _ in range(2):
            assert server.stream(max_tokens=5).error
            until(lambda: readiness(server)[1]["state"] in ("ready", "failed"), "up again, or given up")
        assert readiness(server)[1]["state"] == "failed"


def test_a_hung_engine_is_replaced(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))
    with running(starter_path, fake={"hang_at": 5}, limits={"hang_seconds": 1.0}) as server:
        first = server.supervisor.pid
        stream = server.stream(max_tokens=50)
        assert stream.error
        assert "no progress for 1 s" in stream.error["message"]
        assert 3 <= len(stream.events) <= 6, "the role, four tokens and the error"
        until(lambda: readiness(server)[0] == 200, "ready again")
        assert server.supervisor.pid != first
        server.lives()


def test_a_long_step_that_was_announced_is_no_hang(starter_path: Path) -> None:
    """A slow prefill on a healthy CPU: the engine says how long it will be silent."""
    with running(starter_path, fake={"row": 0.15}, limits={"hang_seconds": 1.0}) as server:
        # The smallest chunk, 16 rows, takes 2.4 s.
        answer = server.post(TEXT, {"prompt": [5000] * 16, "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert server.supervisor.status.restarts == 0


def test_an_idle_engine_is_no_hang(starter_path: Path) -> None:
    with running(starter_path, limits={"hang_seconds": 0.2}) as server:
        time.sleep(1)
        server.lives()
        assert server.supervisor.status.restarts == 0


def test_a_process_that_stood_still_does_not_blame_the_engine(starter_path: Path) -> None:
    """After Ctrl-Z and fg, or a frozen container, the engine's messages lie unread for a moment: no hang."""
    with running(starter_path, fake={"step": 0.05}, limits={"hang_seconds": 1.0}) as server:
        with ThreadPoolExecutor() as pool:
            stream = pool.submit(server.stream, max_tokens=60)
            until(lambda: server.gauges()[0] == 1, "it runs")
            server.on_loop(lambda: time.sleep(2.5))
            assert stream.result().error is None
        assert server.supervisor.status.restarts == 0


def test_an_engine_that_cant_be_started(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of processes or memory: the supervisor's task died, and the server said "loading" for ever."""
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))
    with running(starter_path) as server:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        os.kill(server.supervisor.pid, signal.SIGKILL)
        until(lambda: "can't be started" in readiness(server)[1].get("reason", ""), "the reason is shown")
        until(lambda: readiness(server)[1]["state"] == "failed", "given up")


def test_a_stopping_server_does_not_wait_for_the_pause(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the pause before a restart waited for its end, half a minute at worst."""
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (50.0,))
    with running(starter_path, fake={"crash_at": 1}) as server:
        assert server.stream(max_tokens=5).error
        until(lambda: server.supervisor.status.phase is Phase.RESTARTING, "the pause")
        began = time.monotonic()
    assert time.monotonic() - began < 20
