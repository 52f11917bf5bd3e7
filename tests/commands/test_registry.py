"""`forgelm registry`: the sidecar by itself."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.commands.desk import Desk

pytestmark = pytest.mark.server


def test_it_answers_until_it_is_stopped(desk: Desk, tiny: Path) -> None:
    desk.shelf.put("tiny.gguf", tiny)
    socket = desk.shelf.root / "r.sock"
    with desk.start("registry", "--socket", str(socket), "--offline") as process:
        deadline = time.monotonic() + 30
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://registry") as client:
            assert [model["id"] for model in client.get("/models").json()["models"]] == ["tiny"]
            assert client.post("/search", json={"query": "x"}).json()["error"]["code"] == "offline"
        second = desk.run("registry", "--socket", str(socket))
        assert second.returncode == 1
        assert f"another registry listens on {socket}" in second.stderr
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "")
    assert errors.startswith(f"the registry is at {socket}: `forgelm serve --registry-socket {socket}` uses it\n")
    assert not socket.exists()


def test_it_wants_a_socket(desk: Desk) -> None:
    result = desk.run("registry")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--socket" in result.stderr
