"""`forgelm serve` with its registry: real processes, a real model, and a hub on this machine."""

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.utils import floatToGoString

from tests.api.logged import access
from tests.models import starter_profile
from tests.processes.serving import Served, alive, serve, until
from tests.registry.hub.local import LocalHub

pytestmark = [pytest.mark.server, pytest.mark.model]

REPO = "local/SmolLM2-GGUF"
FILE = "SmolLM2-135M-Instruct-Q4_1.gguf"
TINY = "local/tiny-GGUF"
PROFILE = "mine"


@pytest.fixture
def hub(tmp_path: Path, starter_path: Path, qwen35_path: Path) -> Iterator[LocalHub]:
    """A hub with the starter and a tiny hybrid on it."""
    folder = tmp_path / "hub"
    folder.mkdir()
    with LocalHub(folder) as local:
        local.add(REPO, {FILE: starter_path, "README.md": b"# A model"}, license="apache-2.0")
        local.add(TINY, {"tiny-Q8_0.gguf": qwen35_path}, license="apache-2.0")
        yield local


def runtime_of(tmp_path: Path) -> Path:
    """A directory whose path is short enough for sockets."""
    link = tmp_path / "run"
    if not link.is_symlink():
        link.symlink_to(tempfile.mkdtemp(prefix="f"))
    return link.readlink()


@contextmanager
def serving(tmp_path: Path, hub: LocalHub, *flags: str, **variables: str) -> Iterator[Served]:
    """A server whose folders are empty, with a registry for `hub`."""
    profiles = tmp_path / "config" / "forgelm" / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    model = f'id = "mine"\nfile = "{FILE}"\nrepo = "{REPO}"'
    (profiles / f"{PROFILE}.toml").write_text(f'name = "{PROFILE}"\n[model]\n{model}\n[engine]\ncontext = 2048\n')
    places = {
        "FORGELM_MODELS": str(tmp_path / "models"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(runtime_of(tmp_path)),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.endpoint,
    }
    with serve(tmp_path, "--registry", *flags, **{**places, **variables}) as server:
        yield server


def child(server: Served, module: str) -> int:
    """The pid of the child that runs `module`; waits for it."""

    def found() -> int:
        for pid in server.children():
            if module in psutil.Process(pid).cmdline():
                return pid
        return 0

    return int(until(found, f"{module} runs"))


def engine_pid(server: Served) -> int:
    return child(server, "forgelm.engine.main")


def registry_pid(server: Served) -> int:
    return child(server, "forgelm.registry.main")


def models(server: Served) -> list[dict[str, Any]]:
    """What `/v1/models` lists."""
    found: list[dict[str, Any]] = server.http.get(f"{server.base}/v1/models").json()["data"]
    return found


def ask(server: Served, method: str, path: str, **options: Any) -> httpx.Response:
    """A request to the registry's API, JSON rather than events."""
    headers = {"accept": "application/json", **options.pop("headers", {})}
    return server.http.request(method, f"{server.base}/registry{path}", headers=headers, **options)


def answering(server: Served) -> None:
    """Wait for the registry."""
    until(lambda: ask(server, "GET", "/health").status_code == 200, "the registry answers")


def finished(server: Served, job: str) -> dict[str, Any]:
    """Wait for a download's end."""

    def ended() -> dict[str, Any] | None:
        state: dict[str, Any] = ask(server, "GET", f"/downloads/{job}").json()
        return state if state.get("state") in ("done", "failed", "cancelled") else None

    found: dict[str, Any] = until(ended, "the download ends")
    return found


def test_a_server_without_its_model_fetches_it_first(tmp_path: Path, hub: LocalHub) -> None:
    hub.faults.rate = 30e6
    with serving(tmp_path, hub, "--profile", PROFILE) as server:
        states = server.states_until_ready()
        fetching = [state for state in states if state.get("state") == "downloading"]
        percents = [state["percent"] for state in fetching]
        assert any(0 < percent < 100 for percent in percents)
        assert percents == sorted(percents)
        assert any("MB/s" in state.get("reason", "") for state in fetching)
        assert server.chat().json()["model"] == "mine"
        assert any(line.startswith(f"fetching {FILE} of {REPO}") for line in server.words)
        (entry,) = ask(server, "GET", "/models").json()["models"]
        assert (entry["repo"], entry["origin"], entry["profile"]) == (REPO, "hub", PROFILE)
        until(lambda: ask(server, "GET", "/models").json()["models"][0]["last_used"], "its use was noted")
    assert (tmp_path / "models" / REPO / FILE).is_file()


def test_a_server_that_cannot_fetch_its_model_says_why(tmp_path: Path, hub: LocalHub) -> None:
    hub.catalog.models.pop(REPO)
    with serving(tmp_path, hub, "--profile", PROFILE) as server:
        assert server.end() == 1
        last = server.words[-1]
        assert "mine's model can't be fetched" in last
        assert REPO in last


def test_offline_nothing_is_fetched(tmp_path: Path, hub: LocalHub) -> None:
    with serving(tmp_path, hub, "--profile", PROFILE, "--offline") as server:
        assert server.end() == 1
        assert "offline" in server.words[-1]
        assert "forgelm pull mine" in server.words[-1]
    assert not hub.log.requests()


def test_find_fetch_serve_and_remove(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """The whole way by the API, with an engine that serves meanwhile."""
    with serving(tmp_path, hub, "--model", str(starter_path), "--on-request") as server:
        server.ready()
        answering(server)
        found = ask(server, "POST", "/search", json={"query": "tiny"}).json()["models"]
        assert [(each["repo"], each["files"][0]["here"]) for each in found] == [(TINY, False)]
        assert found[0]["files"][0]["fit"]["fits"]
        job = ask(server, "POST", "/download", json={"repo": TINY}).json()
        done = finished(server, job["id"])
        assert done["state"] == "done", done
        listed = until(lambda: len(models(server)) == 2 and models(server), "both are listed")
        assert listed[0]["loaded"], "the loaded one comes first"
        assert not listed[1]["loaded"]
        before = engine_pid(server)
        answer = server.chat(model=done["model"])
        assert (answer.status_code, answer.json()["model"]) == (200, done["model"])
        assert not alive(before)
        refused = ask(server, "DELETE", f"/models/{done['model']}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert server.chat(model="nothing").status_code == 404
        other = ask(server, "POST", "/import", json={"path": str(starter_path)}).json()["models"][0]["id"]
        loaded = server.http.post(f"{server.base}/v1/models/load", json={"model": other})
        assert (loaded.status_code, loaded.json()["loaded"]) == (200, True)
        assert server.chat(model=other).status_code == 200
        assert ask(server, "DELETE", f"/models/{done['model']}").status_code == 200
        assert server.chat(model=done["model"]).status_code == 404
    assert not list((tmp_path / "models").rglob("*.gguf"))
    assert starter_path.is_file()


def test_a_model_by_its_name(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """It is served under that name, and under the others it has."""
    place = tmp_path / "models" / REPO
    place.mkdir(parents=True)
    (place / FILE).symlink_to(starter_path)
    with serving(tmp_path, hub, "--model", f"{REPO}:Q4_1") as server:
        server.ready()
        assert server.chat().json()["model"] == f"{REPO}:Q4_1"
        assert server.chat(model=FILE.removesuffix(".gguf")).status_code == 200
    with serving(tmp_path, hub, "--model", "SmolLM2-135M-Instruct-Q4_0") as server:
        assert server.end() == 1
        assert "did you mean" in server.words[-1]


def test_events_of_a_download(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    hub.faults.rate = 40e6
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        server.ready()
        answering(server)
        job = ask(server, "POST", "/download", json={"repo": REPO}).json()
        with server.http.stream("GET", f"{server.base}/registry/downloads/{job['id']}") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        states = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert states[-1]["state"] == "done"
        assert len({state["bytes"] for state in states}) > 3


def test_downloads_in_the_metrics(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """What the registry said at the scrape before: a scrape doesn't wait for it."""
    hub.faults.rate = 40e6
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        server.ready()
        answering(server)

        def scraped() -> str:
            return server.http.get(f"{server.base}/metrics").text

        until(lambda: "forgelm_downloads_running 0.0" in scraped(), "the registry was asked")
        assert 'forgelm_process_resident_bytes{role="registry"}' in scraped()
        job = ask(server, "POST", "/download", json={"repo": REPO}).json()
        until(lambda: "forgelm_downloads_running 1.0" in scraped(), "it runs")
        assert finished(server, job["id"])["state"] == "done"
        until(lambda: 'forgelm_downloads_total{outcome="done"} 1.0' in scraped(), "it is counted")
        text = scraped()
        assert "forgelm_downloads_running 0.0" in text
        assert f"forgelm_download_bytes_total {floatToGoString(starter_path.stat().st_size)}" in text


def test_what_the_registry_refuses_counts_as_refused(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """Its code is in the answer, in the one line of the log and in the metrics."""
    asked = {"gone": ("DELETE", "/models/none"), "no_route": ("GET", "/nowhere"), "no_json": ("POST", "/download")}
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        answering(server.ready())
        codes = []
        for name, (method, path) in asked.items():
            answer = ask(server, method, path, headers={"x-request-id": name})
            codes.append(answer.json()["error"]["code"])
            (line,) = until(lambda name=name: access(server, name, logger="access"), "its line")  # type: ignore[misc]
            assert (line["status"], line["error"]) == (answer.status_code, codes[-1])
        text = server.http.get(f"{server.base}/metrics").text
    assert codes == ["model_not_found", "not_found", "invalid_value"]
    for code in codes:
        assert f'forgelm_errors_total{{code="{code}"}} 1.0' in text


def test_the_registrys_death_is_nobodys_concern(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """Answers go on, the registry comes back, and so does its download."""
    hub.faults.rate = 20e6
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        server.ready()
        answering(server)
        job = ask(server, "POST", "/download", json={"repo": REPO}).json()
        until(lambda: ask(server, "GET", f"/downloads/{job['id']}").json().get("bytes", 0) > 10e6, "bytes come")
        with server.stream(max_tokens=60) as events:
            next(events)
            os.kill(registry_pid(server), signal.SIGKILL)
            assert list(events)[-1] == {"done": True}
        answering(server)
        assert finished(server, job["id"])["state"] == "done"
        assert hub.log.sent() < starter_profile().model.bytes + 40e6
        assert "registry down, restarting" in [line["event"] for line in server.log]


def test_the_engine_leaves_the_registry_a_core_while_it_works(
    tmp_path: Path, hub: LocalHub, starter_path: Path
) -> None:
    """Seen from outside: how many of its threads compute."""
    hub.faults.rate = 4e6
    with serving(tmp_path, hub, "--model", str(starter_path), "--threads", "2", "--omp-wait", "auto") as server:
        server.ready()
        answering(server)
        engine = psutil.Process(engine_pid(server))

        def computing() -> int:
            """Threads that took a share of the time in which an answer was written."""
            before = {each.id: each.user_time + each.system_time for each in engine.threads()}
            began = time.monotonic()
            assert server.chat("Tell me a story.", max_tokens=150, ignore_eos=True).status_code == 200
            share = 0.2 * (time.monotonic() - began)
            after = {each.id: each.user_time + each.system_time for each in engine.threads()}
            return sum(seconds - before.get(thread, 0.0) > share for thread, seconds in after.items())

        assert computing() == 2
        job = ask(server, "POST", "/download", json={"repo": REPO}).json()["id"]
        until(lambda: ask(server, "GET", f"/downloads/{job}").json()["state"] == "downloading", "it fetches")
        assert computing() == 1
        ask(server, "DELETE", f"/downloads/{job}")
        until(lambda: computing() == 2, "it has all cores again")


def test_the_registry_wants_the_servers_key(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    with serving(tmp_path, hub, "--model", str(starter_path), "--api-key", "secret") as server:
        server.ready()
        assert ask(server, "GET", "/models").status_code == 401
        until(lambda: ask(server, "GET", "/models", headers={"x-api-key": "secret"}).status_code == 200, "with the key")


WAYS_ROUND = (
    "//x/models/{}",
    "//a:b/c",
    "//[::bad/",
    "/models/../models/{}",
    "/x/%2e%2e/models/{}",
    "/x/%2E%2E/models/{}",
    "/./models/{}",
    "/models/{}",
)


def test_no_path_goes_round_what_is_refused(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    """What the HTTP client makes of a path is what was looked at."""
    place = tmp_path / "models" / REPO
    place.mkdir(parents=True)
    (place / FILE).write_bytes(starter_path.read_bytes())
    with serving(tmp_path, hub, "--model", str(place / FILE)) as server:
        server.ready()
        answering(server)
        until(lambda: ask(server, "GET", "/models").json()["models"], "it is listed")
        (name,) = (each["id"] for each in ask(server, "GET", "/models").json()["models"])
        for target in (path.format(name) for path in WAYS_ROUND):
            request = f"DELETE /registry{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(request.encode())
                status = int(raw.makefile("rb").readline().split()[1])
            assert status in (400, 404, 405, 409), (target, status)
            assert (place / FILE).is_file(), target


def test_many_listeners_keep_nobody_from_asking(tmp_path: Path, hub: LocalHub, starter_path: Path) -> None:
    hub.faults.rate = 1e6
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        server.ready()
        answering(server)
        job = ask(server, "POST", "/download", json={"repo": REPO}).json()["id"]
        request = f"GET /registry/downloads/{job} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with ExitStack() as stack:
            raws = []
            for _ in range(110):
                raws.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
                raws[-1].sendall(request)
            codes = [int(raw.recv(200).split()[1]) for raw in raws]
            assert codes.count(200) == 100
            assert codes.count(429) == 10
            assert ask(server, "GET", "/health").status_code == 429
            loaded = server.http.post(f"{server.base}/v1/models/load", json={"model": "nothing"})
            assert loaded.json()["error"]["code"] == "model_not_found"
        until(lambda: ask(server, "GET", "/health").status_code == 200, "they have left, which is noticed")
        ask(server, "DELETE", f"/downloads/{job}")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_no_registry_outlives_its_server(
    tmp_path: Path, hub: LocalHub, starter_path: Path, sign: signal.Signals
) -> None:
    with serving(tmp_path, hub, "--model", str(starter_path)) as server:
        pid = registry_pid(server.ready())
        answering(server)
        server.signal(sign)
        server.end()
        until(lambda: not alive(pid), "the registry is gone")
    left = list((runtime_of(tmp_path) / "forgelm").iterdir())
    assert not left or sign is signal.SIGKILL, left
