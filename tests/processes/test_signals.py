"""Ending: in order, with status 0, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.serving import Served, alive, serve, until
from tests.program import FORGELM, PATIENCE, Terminal, environment

pytestmark = pytest.mark.server

FAST: dict[str, Any] = {"step": 0.01}


def nothing_left(server: Served, engine: int, port: int) -> None:
    """No process, no listener."""
    assert not alive(engine)
    listening = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port]
    assert [c for c in listening if c.status == psutil.CONN_LISTEN] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_server_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with serve(tmp_path, fake=FAST) as server:
        engine, port = server.ready().engine, server.port
        server.signal(number)
        assert server.end() == 0
        assert server.words == ["stopped"]
        nothing_left(server, engine, port)


def test_the_real_engine_ends_in_order(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        engine, port = server.ready().engine, server.port
        assert server.chat().status_code == 200
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert [line for line in server.log if line["level"] in ("warning", "error")] == []
        nothing_left(server, engine, port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_streams_may_end(tmp_path: Path, number: signal.Signals) -> None:
    with serve(tmp_path, fake=FAST) as server:
        engine, port = server.ready().engine, server.port
        with server.stream(max_tokens=150) as events:
            next(events)
            server.signal(number)
            *_, final, done = events
        assert done == {"done": True}
        assert final["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0
        nothing_left(server, engine, port)


@pytest.mark.parametrize("state", ["loading", "crashed", "hung"])
def test_ending_in_every_state(tmp_path: Path, state: str) -> None:
    """Ctrl-C while the model loads, between two lives of the engine, or beside one that hangs."""
    fake = {"loading": {"load": 60.0}, "crashed": {**FAST, "crash_at": 1}, "hung": {**FAST, "hang_at": 1}}[state]
    with serve(tmp_path, fake=fake) as server:
        if state == "loading":
            engine = server.engine
        elif state == "crashed":
            engine = server.ready().engine
            server.chat()
        else:
            engine = server.ready().engine
            with server.stream(max_tokens=5) as events:
                next(events)
        began = time.monotonic()
        server.signal(signal.SIGINT)
        assert server.end() == 0
        assert time.monotonic() - began < 8
        assert not alive(engine)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C twice: no waiting for streams."""
    with serve(tmp_path, fake=FAST) as server:
        engine, port = server.ready().engine, server.port
        with server.stream(max_tokens=8000) as events:
            next(events)
            server.signal(number)
            time.sleep(0.5)
            assert server.process.poll() is None
            began = time.monotonic()
            server.signal(signal.SIGINT)
            assert server.end() == 0
            assert time.monotonic() - began < 5
        nothing_left(server, engine, port)
        assert "Traceback" not in server.errors


def test_ctrl_c_on_a_terminal(starter_path: Path) -> None:
    """There the signal goes to the engine as well, which must leave the decision to the server."""
    import os

    variables = {"FORGELM_FAKE_ENGINE": '{"step": 0.01}', "FORGELM_MODELS": str(starter_path.parent)}
    with Terminal([*FORGELM, "serve", "--profile", "starter", "--port", "0"], env=variables) as terminal:
        terminal.expect("curl -N")
        os.killpg(terminal.process.pid, signal.SIGINT)
        output, code = terminal.finish()
    assert code == 0
    assert "stopped" in output
    assert "Traceback" not in output
    until(lambda: not psutil.pid_exists(terminal.process.pid), "it is gone")


# --- the first process of a container -----------------------------------------------------------------------------

FIRST = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--pid", "--fork", "--kill-child"]
"""Before a command: it is process 1 of a namespace, which gets no signal that it has no handler for."""

STOPPED_WHILE_LOADING = """
import os, signal, sys, types
from forgelm import __main__ as entry
class Loading(types.ModuleType):
    def __getattr__(self, name):
        if name == "main":
            os.kill(1, signal.SIG)
        raise AttributeError(name)
sys.modules["forgelm.cli"] = Loading("forgelm.cli")
entry.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_container_may_be_stopped_while_modules_are_loaded(number: signal.Signals) -> None:
    """The signal was lost: `docker stop` in the first second waited for ten and killed."""
    script = STOPPED_WHILE_LOADING.replace("signal.SIG)", f"{int(number)})")
    done = subprocess.run([*FIRST, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "")


def test_a_registry_of_its_own_may_be_stopped_while_it_starts(tmp_path: Path) -> None:
    """It replaces the program that was started, and what came until it had its handlers was lost."""
    command = [*FIRST, *FORGELM, "registry", "--offline", "--socket", str(tmp_path / "r.sock")]
    settings = environment(FORGELM_MODELS=str(tmp_path), XDG_STATE_HOME=str(tmp_path))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stderr is not None
        assert "the registry is at" in process.stderr.readline()
        (first,) = psutil.Process(process.pid).children()
        first.send_signal(signal.SIGTERM)
        try:
            # 143 where it came before the registry took the place.
            assert process.wait(PATIENCE) in (0, 128 + signal.SIGTERM)
        finally:
            process.kill()
