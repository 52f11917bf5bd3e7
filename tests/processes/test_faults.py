"""The engine dies, hangs or takes its time: clients are told, and the server goes on."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes.serving import Served, alive, serve, until

pytestmark = pytest.mark.server

FAST: dict[str, Any] = {"step": 0.01}


def metric(server: Served, name: str) -> float:
    lines = server.http.get(f"{server.base}/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


def test_45_killing_the_engine_mid_stream(starter_path: Path, tmp_path: Path) -> None:
    """The OOM killer takes the engine: the stream ends with an error object and is closed, `/readyz` says so, and the
    next request works (case 45). With the real model."""
    with serve(tmp_path) as server:
        server.ready()
        engine = server.engine
        with server.stream("Tell me a long story.", max_tokens=500, ignore_eos=True) as events:
            for _ in range(5):
                next(events)
            os.kill(engine, signal.SIGKILL)
            *_, last = events
        assert last["error"]["code"] == "engine_error"
        assert "signal 9" in last["error"]["message"]
        states = server.states_until_ready()
        assert {"restarting", "loading"} & {state["state"] for state in states}
        assert any("signal 9" in state.get("reason", "") for state in states)
        assert server.chat().status_code == 200
        assert server.engine != engine
        assert not alive(engine)
        assert metric(server, "forgelm_engine_restarts_total") == 1
        assert metric(server, "forgelm_requests_open") == 0
        assert server.output.count("ForgeLM serves") == 1, "announced once, not at each restart"


def test_a_stopped_engine_counts_as_hung(tmp_path: Path) -> None:
    with serve(tmp_path, fake=FAST, FORGELM_HANG_SECONDS="1") as server:
        engine = server.ready().engine
        with server.stream(max_tokens=5000) as events:
            next(events)
            os.kill(engine, signal.SIGSTOP)
            *_, last = events
        assert "no progress" in last["error"]["message"]
        until(lambda: not alive(engine), "the hung engine is gone")
        server.ready()
        assert server.chat().status_code == 200


def test_a_slow_load_is_waited_for(tmp_path: Path) -> None:
    """A load longer than the hang limit is no hang."""
    with serve(tmp_path, "--hang-seconds", "1", fake={**FAST, "load": 3.0}) as server:
        until(lambda: server.readiness().get("state") == "loading", "it says that it loads")
        assert "percent" in server.readiness()
        refusal = server.chat()
        assert refusal.status_code == 503
        assert refusal.headers["retry-after"]
        assert server.http.get(f"{server.base}/livez").status_code == 200
        assert "ForgeLM serves" not in server.output
        server.ready()
        assert server.readiness()["restarts"] == 0
        assert server.chat().status_code == 200


def test_the_real_load_reports_progress(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        seen = server.states_until_ready()
        percents = [state["percent"] for state in seen if state.get("state") == "loading"]
        assert percents == sorted(percents)
        assert all(0 <= percent <= 100 for percent in percents)
        ready = seen[-1]
        assert ready["description"].startswith("llama")
        assert (ready["context"], ready["kv_type"]) == (8192, "f16")


def test_killing_the_server_ends_its_engine(tmp_path: Path) -> None:
    """Killed without a chance to tidy up: the engine must not go on holding the GPU's memory."""
    with serve(tmp_path, fake=FAST) as server:
        engine = server.ready().engine
        server.signal(signal.SIGKILL)
        server.end()
        until(lambda: not alive(engine), "the engine ends by itself", seconds=5)


def test_killing_the_server_ends_an_engine_that_hangs(tmp_path: Path) -> None:
    """An engine in the middle of a step that never returns doesn't read the closed socket: the kernel ends it."""
    with serve(tmp_path, fake={**FAST, "hang_at": 3}) as server:
        engine = server.ready().engine
        with server.stream(max_tokens=50) as events:
            next(events)
            next(events)
            next(events)
            server.signal(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(events)
        server.end()
        until(lambda: not alive(engine), "the engine is gone", seconds=5)


def test_failures_are_logged_as_such_and_leavers_are_not(tmp_path: Path) -> None:
    """The log's errors are the operator's: a client that leaves is none."""
    with serve(tmp_path, fake=FAST) as server:
        server.ready()
        with server.stream(max_tokens=5000) as events:
            next(events)
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(
                f"{server.base}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "x"}]},
                timeout=0.3,
            )
        assert server.chat(temperature=9).status_code == 400
        assert server.http.post(f"{server.base}/v1/chat/completions", content=b"{").status_code == 400
        assert server.chat().status_code == 200
        assert [line for line in server.log if line["level"] in ("warning", "error")] == []
        os.kill(server.engine, signal.SIGKILL)
        until(lambda: any(line["level"] == "warning" for line in server.log), "the death is logged")
        (line,) = [line for line in server.log if line["level"] == "warning"]
        assert "signal 9" in line["reason"]
