"""The registry's API on a real socket: what clients see, and that nothing they send breaks it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from forgelm.fit.budget import Budget, Pool
from forgelm.ipc.registry import BUDGET_HEADER
from forgelm.registry import app, sse
from forgelm.registry.partial import Origin, write_origin
from tests.registry.files import write_tiny
from tests.registry.hub import LocalHub
from tests.registry.live import PATIENCE, Live, error_of, serving
from tests.registry.shelf import Shelf

REPO = "local/m-GGUF"
SIZE = 12 << 20
SLOW = 8e6


def fill(hub: LocalHub, folder: Path) -> None:
    path = write_tiny(folder / "m.gguf")
    with path.open("ab") as file:
        file.truncate(SIZE)
    hub.add(REPO, {"m-Q4_K_M.gguf": path, "mmproj-F16.gguf": b"GGUF"}, license="mit")


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> LocalHub:
    fill(local, tmp_path)
    return local


@pytest.fixture
def live(shelf: Shelf, hub: LocalHub) -> Iterator[Live]:
    """A running app, which in the end still answers."""
    with serving(shelf.library(hub), shelf.state, shelf.root / "registry.sock") as found:
        yield found
        hub.faults.release.set()
        assert found.get("/health").json()["status"] == "ok"


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One for all that is refused: it has the model `o/r:Q4_0` before and after each test, and no other."""
    root = tmp_path_factory.mktemp("steady")
    with pytest.MonkeyPatch.context() as patch, LocalHub(root) as hub:
        shelf = Shelf(root / "shelf").settle(patch)
        fill(hub, root)
        installed(shelf)
        with serving(shelf.library(hub), shelf.state, shelf.root / "registry.sock") as found:
            yield found


@pytest.fixture
def refusing(steady: Live) -> Iterator[Live]:
    """The steady one, which is found as it was."""
    yield steady
    assert [model["id"] for model in steady.get("/models").json()["models"]] == ["o/r:Q4_0"]
    assert steady.get("/downloads").json() == {"downloads": []}


def installed(shelf: Shelf, sha256: str = "ab" * 32) -> Path:
    """A model that looks as if it had been fetched: `o/r:Q4_0`."""
    path = shelf.models / "o" / "r" / "m-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    write_origin(write_tiny(path), Origin("o/r", path.name, "c0ffee", path.stat().st_size, sha256, "mit"))
    return path


# --- models ---


def test_models(shelf: Shelf, live: Live) -> None:
    assert live.get("/models").json() == {"models": [], "missing": []}
    path = installed(shelf)
    (model,) = live.get("/models").json()["models"]
    assert (model["id"], model["path"], model["context"], model["origin"]) == ("o/r:Q4_0", str(path), 4096, "hub")


@pytest.mark.parametrize("name", ["o/r:Q4_0", "O%2FR%3AQ4_0", "m-Q4_0", "o/r/m-Q4_0.gguf"])
def test_one_model_by_any_name(shelf: Shelf, live: Live, name: str) -> None:
    installed(shelf)
    assert live.get(f"/models/{name}").json()["id"] == "o/r:Q4_0"
    used = live.post(f"/models/{name}/used").json()
    assert used["last_used"] == live.get("/models/o/r:Q4_0").json()["last_used"] > 0
    assert live.ask("DELETE", f"/models/{name}").json()["id"] == "o/r:Q4_0"
    assert list(shelf.models.iterdir()) == []


def test_a_model_that_is_not_here(shelf: Shelf, live: Live) -> None:
    installed(shelf)
    for method, path in (("GET", "/models/o/r:Q4"), ("DELETE", "/models/o/r:Q4"), ("POST", "/models/o/r:Q4/used")):
        error = error_of(live.ask(method, path), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "did you mean o/r:Q4_0" in error["message"]


def test_a_check(shelf: Shelf, live: Live) -> None:
    installed(shelf)
    with live.events("POST", "/models/o/r:Q4_0/verify") as events:
        *_, last = events
    assert isinstance(last, dict)
    assert (last["model"], last["state"], last["error"]) == ("o/r:Q4_0", "done", None)
    assert last["bytes"] == last["total"] > 0
    assert "is damaged" in last["installed"]["problem"]
    assert live.post("/models/o/r:Q4_0/verify").json()["installed"] == last["installed"]
    assert live.get("/models/o/r:Q4_0").json()["problem"] == last["installed"]["problem"]


def test_a_check_ends_when_nobody_listens(shelf: Shelf, live: Live) -> None:
    """It went on for hours, and the next one waited for it."""
    path = write_tiny(shelf.models / "huge.gguf")
    with path.open("ab") as file:
        file.truncate(1 << 42)
    write_tiny(shelf.models / "small.gguf")
    with live.events("POST", "/models/huge/verify") as events:
        next(events)
    with pytest.raises(httpx.ReadTimeout):
        live.post("/models/huge/verify", timeout=0.5)
    assert live.post("/models/small/verify").json()["state"] == "done"


def test_a_file_that_cannot_be_read_ends_a_check(shelf: Shelf, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[str]:
        raise OSError(5, "Input/output error")

    write_tiny(shelf.models / "m.gguf")
    monkeypatch.setattr("forgelm.registry.library.hash_files", fail)
    assert "Input/output error" in error_of(live.post("/models/m/verify"), 409)["message"]
    with live.events("POST", "/models/m/verify") as events:
        *_, event = events
    assert isinstance(event, dict)
    assert (event["state"], event["error"]["code"]) == ("failed", "conflict")


def test_an_import(shelf: Shelf, live: Live, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "outside" / "m.gguf") if (tmp_path / "outside").mkdir() is None else tmp_path
    found = live.post("/import", {"path": str(path.parent)}).json()
    assert [model["id"] for model in found["models"]] == ["m"]
    path.unlink()
    assert live.get("/models").json() == {"models": [], "missing": [str(path)]}


# --- the hub ---


def test_a_search(live: Live) -> None:
    (found,) = live.post("/search", {"query": "m-GGUF", "limit": 5}).json()["models"]
    assert (found["repo"], found["license"], found["companions"]) == (REPO, "mit", ["mmproj-F16.gguf"])
    (file,) = found["files"]
    assert (file["quant"], file["bytes"], file["here"], file["fit"]["fits"]) == ("Q4_K_M", SIZE, False, True)


def test_the_memory_of_whoever_asks(live: Live) -> None:
    small = msgspec.json.encode(Budget(Pool("RAM", 1 << 30, 256 << 20))).decode()
    for path, body in (("/search", {}), ("/inspect", {"repo": REPO})):
        answer = live.post(path, body, headers={BUDGET_HEADER: small}).json()
        file = answer["models"][0]["files"][0] if path == "/search" else answer["file"]
        assert not file["fit"]["fits"]


@pytest.mark.parametrize(
    "said", ["", "{}", "null", '{"host": 1}', '{"host": {"name": "", "total": 1, "free": 1}, "cards": 1000000000}']
)
def test_memory_that_is_none(refusing: Live, said: str) -> None:
    for path, body in (("/search", {}), ("/inspect", {"repo": REPO}), ("/download", {"repo": REPO})):
        assert error_of(refusing.post(path, body, headers={BUDGET_HEADER: said}), 400)["param"] == BUDGET_HEADER


def test_a_look_at_what_would_be_fetched(hub: LocalHub, live: Live) -> None:
    found = live.post("/inspect", {"repo": REPO, "quant": "Q4_K_M"}).json()
    assert (found["repo"], found["revision"], found["license"]) == (REPO, hub.catalog.models[REPO].commit, "mit")
    assert (found["file"]["file"], found["file"]["fit"]["fits"]) == ("m-Q4_K_M.gguf", True)
    assert (found["architecture"], found["context"], found["license_accepted"]) == ("llama", 4096, True)
    assert (found["problem"], found["cached"], found["file"]["here"]) == ("", False, False)
    assert live.get("/downloads").json() == {"downloads": []}


def test_a_look_at_what_cannot_be_served(hub: LocalHub, live: Live) -> None:
    hub.add("local/zip-GGUF", {"m-Q4_K_M.gguf": b"PK\3\4" + bytes(100)})
    found = live.post("/inspect", {"repo": "local/zip-GGUF"}).json()
    assert "zip" in found["problem"]
    assert "zip" in error_of(live.post("/download", {"repo": "local/zip-GGUF"}), 400)["message"]


# --- downloads ---


def test_a_download(shelf: Shelf, hub: LocalHub, live: Live) -> None:
    hub.faults.rate = SLOW
    answer = live.post("/download", {"repo": REPO})
    begun = answer.json()
    assert (answer.status_code, begun["file"], begun["total"]) == (202, "m-Q4_K_M.gguf", SIZE)
    with live.events("GET", f"/downloads/{begun['id']}") as events:
        seen = [event for event in events if isinstance(event, dict)]
    assert {event["id"] for event in seen} == {begun["id"]}
    assert [event["bytes"] for event in seen] == sorted(event["bytes"] for event in seen)
    assert any(0 < event["bytes"] < SIZE and event["rate"] and event["eta"] for event in seen)
    done = seen[-1]
    assert (done["state"], done["model"], done["bytes"]) == ("done", f"{REPO}:Q4_K_M", SIZE)
    assert live.get(f"/downloads/{begun['id']}").json() == done
    assert live.get("/downloads").json() == {"downloads": [done]}
    again = live.post("/download", {"repo": REPO})
    assert (again.status_code, again.json()["id"]) == (200, begun["id"])
    with live.events("GET", f"/downloads/{begun['id']}") as events:
        assert list(events) == [done]
    assert live.get(f"/models/{quote(done['model'], safe='')}").json()["path"] == str(
        shelf.models / REPO / "m-Q4_K_M.gguf"
    )


@pytest.mark.parametrize(
    ("query", "left"), [("", True), ("?purge=false", True), ("?purge=true", False), ("?purge", False)]
)
def test_a_download_that_is_stopped(shelf: Shelf, hub: LocalHub, live: Live, query: str, left: bool) -> None:
    hub.faults.rate = SLOW
    job = live.post("/download", {"repo": REPO}).json()["id"]
    with live.events("GET", f"/downloads/{job}") as events:
        while isinstance(event := next(events), dict) and event["bytes"] < 1 << 20:
            pass
        stopped = live.ask("DELETE", f"/downloads/{job}{query}").json()
        *_, last = events
    assert stopped["state"] == "cancelled"
    assert isinstance(last, dict)
    assert last["state"] == "cancelled"
    assert bool(list(shelf.models.rglob(".*.part"))) == left
    assert live.ask("DELETE", f"/downloads/{job}").json()["state"] == "cancelled"


def test_a_licence_is_asked_for(hub: LocalHub, live: Live) -> None:
    hub.catalog.models[REPO].license = "gemma"
    error = error_of(live.post("/download", {"repo": REPO}), 403)
    assert (error["code"], error["param"], error["type"]) == (
        "license_not_accepted",
        "accept_license",
        "permission_error",
    )
    assert live.post("/download", {"repo": REPO, "accept_license": True}).status_code == 202


def test_a_silent_download_is_pinged(hub: LocalHub, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(sse, "FADE_SECONDS", 0.05)
    job = live.post("/download", {"repo": REPO}).json()["id"]
    hub.faults.hang_after = 0
    with live.events("GET", f"/downloads/{job}") as events:
        assert ": ping" in (next(events) for _ in range(100))
    live.ask("DELETE", f"/downloads/{job}")


def test_streams_end_with_the_server(hub: LocalHub, live: Live) -> None:
    hub.faults.rate = SLOW
    job = live.post("/download", {"repo": REPO}).json()["id"]
    with live.events("GET", f"/downloads/{job}") as events:
        next(events)
        live.jobs.stop()
        *_, last = events
    assert isinstance(last, dict)
    assert last["state"] in ("queued", "downloading")


def test_readers_that_leave_stop_nothing(hub: LocalHub, live: Live) -> None:
    hub.faults.rate = SLOW
    job = live.post("/download", {"repo": REPO}).json()["id"]
    for _ in range(3):
        with live.events("GET", f"/downloads/{job}") as events:
            next(events)
    hub.faults.rate = None
    assert live.jobs.get(job).over.wait(PATIENCE)
    assert live.get(f"/downloads/{job}").json()["state"] == "done"


# --- what is wrong ---

BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"{'repo': 1}",
    b'{"repo": 1}',
    b'{"query": [], "path": 5, "repo": {}}',
    b'{"unknown": 1}',
    b'{"repo": "a/b", "path": "/x", "query": "x"}',
    b'{"repo": "\\ud800", "path": "\\ud800", "query": "\\ud800"}',
    b'{"limit": 0, "repo": null, "path": null}',
    b'{"limit": 1e99, "revision": 5, "path": 5}',
    b"\xff\xfe{}",
    b'{"path": ' + b"[" * 20_000,
    json.dumps({"repo": "x" * 600, "path": "/" + "x" * 600, "query": "x" * 600}).encode(),
]


@pytest.mark.parametrize("path", ["/search", "/inspect", "/download", "/import"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_bodies_that_are_no_request(refusing: Live, path: str, body: bytes) -> None:
    error = error_of(refusing.ask("POST", path, content=body), 400)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 500


def test_bodies_that_never_end(refusing: Live) -> None:
    assert (
        error_of(refusing.ask("POST", "/search", content=b" " * (app.BODY_BYTES + 1)), 413)["code"]
        == "request_too_large"
    )


REQUESTS = [
    ("/download", {}),
    ("/download", {"repo": "../../etc/passwd"}),
    ("/download", {"repo": "a/../../b"}),
    ("/download", {"repo": REPO, "file": "../../../etc/passwd"}),
    ("/download", {"repo": REPO, "file": "mmproj-F16.gguf"}),
    ("/inspect", {"repo": "https://example.com/x"}),
    ("/inspect", {"repo": "\0/\0"}),
    ("/import", {"path": "relative"}),
    ("/import", {"path": ""}),
    ("/import", {"path": "/no/such/folder"}),
    ("/import", {"path": "/\0"}),
    ("/import", {"path": "~nobody-of-this-name"}),
    ("/import", {"path": "/" + "x/" * 240}),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_requests_that_cannot_be_done(refusing: Live, path: str, body: dict[str, Any]) -> None:
    assert refusing.post(path, body).status_code in (400, 404)
    error_of(refusing.post(path, body), refusing.post(path, body).status_code)


NAMES = [
    "..%2F..%2Fetc%2Fpasswd",
    "%2Fetc%2Fpasswd",
    "a/../../../../etc/passwd",
    "%00",
    "%FF",
    "x" * 4000,
    "%2e%2e",
    "%0a",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_models(refusing: Live, name: str) -> None:
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/used"), ("POST", "/verify")):
        error_of(refusing.ask(method, f"/models/{name}{end}"), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("POST", "/models/m/explode", 404),
        ("POST", "/models/verify", 404),
        ("GET", "/downloads/none", 404),
        ("DELETE", "/downloads/none", 404),
        ("DELETE", "/downloads/none?purge=perhaps", 400),
        ("PUT", "/models/m", 405),
        ("POST", "/downloads", 405),
        ("GET", "/download", 405),
    ],
)
def test_routes_that_are_none(refusing: Live, method: str, path: str, status: int) -> None:
    error_of(refusing.ask(method, path), status)


def test_many_at_once(shelf: Shelf, live: Live) -> None:
    installed(shelf)
    answers = list[int]()
    threads = [
        threading.Thread(target=lambda: answers.append(live.get("/models/o/r:Q4_0").status_code)) for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 40


def test_a_bug_of_ours_is_told_as_such(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(live.library, "find", bug)
    error = error_of(live.get("/models/m"), 500)
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "secret" not in error["message"]
