"""`forgelm ps` against running servers, and against what is none."""

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from forgelm.commands import ps as module
from forgelm.errors import ForgeError
from tests.api.live import CHAT, Live, message, running, until
from tests.program import forgelm

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(starter_path: Path) -> Iterator[Live]:
    """One whose answers last."""
    with running(starter_path, fake={"step": 0.02, "slots": 1}) as live:
        yield live


def ps(url: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forgelm("ps", "--url", url, *flags, env=variables)


def address(server: Live) -> str:
    return f"http://127.0.0.1:{server.port}"


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why."""
    assert (result.returncode, result.stdout) == (1, ""), result
    (line,) = result.stderr.splitlines()
    return line


def words(text: str, first: str) -> list[str]:
    """The words of the line that begins with `first`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{first} ")]
    return line.split()


def test_at_rest(server: Live) -> None:
    server.idle()
    result = ps(address(server))
    assert (result.returncode, result.stderr) == (0, "")
    assert "ready, up" in result.stdout
    assert "0 running, 0 waiting" in result.stdout
    assert words(result.stdout, "smollm2-135m-instruct")[1:7] == ["chat", "ready", "Q4_1", "8,192", "f16", "fake"]
    assert words(result.stdout, "engine")[1] == str(server.supervisor.pid)
    assert int(words(result.stdout, "engine")[2]) > 1
    assert "KV: 0 of 8,192 cells used" in result.stdout
    assert "request " not in result.stdout


def test_open_requests(server: Live) -> None:
    body = message("A secret", max_tokens=5000, stream=True)
    with server.http.stream("POST", CHAT, json=body, headers={"x-request-id": "runs"}) as one:
        held = [one.iter_lines()]
        next(held[0])
        until(lambda: server.gauges()[0] == 1, "it runs")
        with server.http.stream("POST", CHAT, json=body, headers={"x-request-id": "waits"}) as two:
            held.append(two.iter_lines())
            next(held[1])
            result = ps(address(server))
    assert "1 running, 1 waiting" in result.stdout
    name, model, stage, prompt, cached, generated, seconds = words(result.stdout, "runs")
    assert (name, model, stage, cached) == ("runs", "smollm2-135m-instruct", "decode", "0")
    assert int(prompt) > 10
    assert int(generated.replace(",", "")) > 0
    assert float(seconds) > 0
    assert words(result.stdout, "waits")[2] == "waiting"
    assert "secret" not in result.stdout


def test_json_is_what_the_server_answers(server: Live) -> None:
    found = json.loads(ps(address(server), "--json").stdout)
    assert found.keys() == server.http.get("/status").json().keys()
    assert found["models"][0]["id"] == "smollm2-135m-instruct"


@pytest.mark.parametrize("suffix", ["/", "/v1", "/v1/"])
def test_the_apis_address_does_as_well(server: Live, suffix: str) -> None:
    assert ps(address(server) + suffix).returncode == 0


def test_where_a_server_is_says_the_environment(server: Live) -> None:
    for variables in (
        {"FORGELM_URL": f"{address(server)}/v1"},
        {"FORGELM_PORT": str(server.port)},
        {"FORGELM_PORT": str(server.port), "FORGELM_HOST": "0.0.0.0"},
    ):
        assert forgelm("ps", env=variables).returncode == 0, variables


def test_a_profile_says_where_it_listens(server: Live, tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(f'name = "mine"\n[model]\nid = "m"\nfile = "m.gguf"\n[server]\nport = {server.port}\n')
    assert forgelm("ps", env={"FORGELM_PROFILE": str(profile)}).returncode == 0


def test_loading(starter_path: Path) -> None:
    with running(starter_path, fake={"load": 3.0}, wait=False) as live:
        until(lambda: live.service.switcher.current, "it loads")
        result = ps(address(live))
        assert result.returncode == 0
        assert ", loading " in result.stdout


def test_keys(starter_path: Path) -> None:
    with running(starter_path, keys=("right", "other")) as live:
        url = address(live)
        assert "wrong API key" in refused(ps(url, "--api-key", "wrong"))
        assert "wants an API key" in refused(ps(url))
        assert ps(url, "--api-key", "right").returncode == 0
        assert ps(url, FORGELM_API_KEY="right,other").returncode == 0, "as the server itself is told them"
        assert ps(url, OPENAI_API_KEY="other").returncode == 0


def test_nothing_listens_there() -> None:
    assert refused(ps("http://127.0.0.1:9")) == (
        "forgelm: nothing answers at http://127.0.0.1:9; start a server with `forgelm serve`"
    )


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, "", "is no ForgeLM server: it has no /status"),
        (200, "<html>hello</html>", "is no ForgeLM server of this version"),
        (200, '{"status": "ok"}', "is no ForgeLM server of this version"),
        (500, "oops", "answers 500"),
        (500, '{"error": "a\\nb\\u001b[2J"}', "a b"),
    ],
)
def test_something_else_listens_there(status: int, body: str, said: str) -> None:
    for flags in ((), ("--json",)):
        with answering(status, body) as url:
            line = refused(ps(url, *flags))
        assert said in line
        assert line.isprintable()


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://[::1"])
def test_what_is_no_address(url: str) -> None:
    assert "--url" in forgelm("ps", "--url", url).stderr


@contextmanager
def answering(status: int, body: str | Iterator[bytes]) -> Iterator[str]:
    """Any other program's HTTP server; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            with suppress(OSError):
                self.wfile.writelines([body.encode()] if isinstance(body, str) else body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and all of them never."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.3)
    ended = threading.Event()

    def body() -> Iterator[bytes]:
        while not ended.wait(0.01):
            yield b" "

    with answering(200, body()) as url:
        result = CliRunner().invoke(module.ps, ["--url", url])
        ended.set()
    assert isinstance(result.exception, ForgeError)
    assert str(result.exception) == f"{url} doesn't answer in time"


def test_what_strangers_wrote_stays_in_its_line(server: Live) -> None:
    """A client's own id is printable; whatever a server of another making sends may not be."""
    found = server.http.get("/status").json()
    found["models"][0]["id"] = "x\u001b[2J\ny"
    found["state"] = "ready\nforged"
    with answering(200, json.dumps(found)) as url:
        result = ps(url)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith(("y", "forged"))]
