"""The registry as a process: how it starts, ends, dies, and goes on with what it was fetching."""

import hashlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from forgelm.registry.settings import RegistryConfig
from tests.processes.serving import until
from tests.program import ROOT, environment
from tests.registry.files import write_tiny
from tests.registry.hub import LocalHub
from tests.registry.live import PATIENCE, client, error_of, read_events
from tests.registry.shelf import ELSEWHERE, Shelf

pytestmark = pytest.mark.server

REPO = "local/m-GGUF"
FILE = "m-Q4_K_M.gguf"
SIZE = 24 << 20
SLOW = 24e6


class Process:
    """A running registry and requests to it."""

    def __init__(self, shelf: Shelf, popen: subprocess.Popen[bytes], errors: Path, begun: int) -> None:
        self.popen = popen
        self.pid = popen.pid
        self._errors = errors
        self._begun = begun
        self.http = client(shelf.root / "run" / "registry.sock")

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def ready(self) -> "Process":
        """Wait until it listens: httpx leaves a socket open when nobody does."""

        def listens() -> bool:
            assert self.popen.poll() is None, self.errors
            return b"registry ready" in self._errors.read_bytes()[self._begun :]

        until(listens, "it listens")
        return self

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer's JSON."""
        answer = self.http.request(method, path, json=body, headers={"accept": "application/json"})
        found: dict[str, Any] = answer.json()
        return found

    def end(self) -> int:
        """Wait for its end; the exit code."""
        return self.popen.wait(PATIENCE)


@contextmanager
def registry(shelf: Shelf, hub: LocalHub | None = None, *arguments: str, **options: Any) -> Iterator[Process]:
    """The process, killed in the end if it still runs."""
    config = RegistryConfig(
        socket=str(shelf.root / "run" / "registry.sock"),
        models=str(shelf.models),
        state=str(shelf.state),
        offline=hub is None,
        endpoint=hub.endpoint if hub else "",
    )
    variables = environment(**shelf.variables)
    for name in ELSEWHERE:
        variables.pop(name, None)
    command = [sys.executable, "-m", "forgelm.registry.main", msgspec.json.encode(config).decode(), *arguments]
    errors = shelf.root / "stderr"
    with errors.open("ab") as file:
        begun = file.tell()
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file, env=variables, cwd=ROOT, **options)
    process = Process(shelf, popen, errors, begun)
    try:
        yield process
    finally:
        process.http.close()
        popen.kill()
        popen.wait(PATIENCE)


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> LocalHub:
    path = write_tiny(tmp_path / "m.gguf")
    with path.open("ab") as file:
        file.write(random.Random(1).randbytes(SIZE - path.stat().st_size))
    local.add(REPO, {FILE: path, "m-Q8_0.gguf": path}, license="mit")
    return local


def beyond(process: Process, job: str, count: int) -> dict[str, Any]:
    """Wait until more than `count` bytes of a download are here."""

    def there() -> dict[str, Any]:
        now = process.ask("GET", f"/downloads/{job}")
        return now if now.get("bytes", 0) > count else {}

    found: dict[str, Any] = until(there, f"more than {count} bytes")
    return found


def finished(process: Process, job: str) -> dict[str, Any]:
    """Wait for a download's end."""

    def over() -> dict[str, Any]:
        now = process.ask("GET", f"/downloads/{job}")
        return now if now.get("state") in ("done", "failed", "cancelled") else {}

    found: dict[str, Any] = until(over, "the end of the download")
    return found


def right(shelf: Shelf, hub: LocalHub) -> bool:
    """Whether the model's file is what the hub has."""
    content = (shelf.models / REPO / FILE).read_bytes()
    return hashlib.sha256(content).hexdigest() == hub.catalog.models[REPO].files[FILE].sha256


# --- starting ---


def test_its_socket_is_for_this_user_alone(shelf: Shelf) -> None:
    with registry(shelf) as process:
        process.ready()
        path = shelf.root / "run" / "registry.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert process.ask("GET", "/models") == {"models": [], "missing": []}
        process.popen.terminate()
        assert process.end() == 0
        assert not path.exists()


def test_a_dead_processs_socket_is_replaced(shelf: Shelf) -> None:
    with registry(shelf) as first:
        first.ready()
        first.popen.kill()
        first.end()
        assert (shelf.root / "run" / "registry.sock").exists()
        with registry(shelf) as second:
            second.ready()


def test_a_living_processs_socket_is_not_taken(shelf: Shelf) -> None:
    with registry(shelf) as first:
        first.ready()
        with registry(shelf) as second:
            assert second.end() == 1
            assert "another registry listens on" in second.errors
        assert first.ask("GET", "/health")["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "arguments are wrong"),
        (["{}"], 2, "socket"),
        (['{"socket": "", "models": "", "state": "", "colour": 1}'], 2, "colour"),
        ([msgspec.json.encode(RegistryConfig(f"/{'x' * 120}/s", "/m", "/s")).decode()], 1, "too long for a socket"),
        ([msgspec.json.encode(RegistryConfig("/dev/null/s", "/m", "/s")).decode()], 1, "can't listen on"),
    ],
)
def test_it_says_why_it_cannot_start(arguments: list[str], code: int, said: str) -> None:
    command = [sys.executable, "-m", "forgelm.registry.main", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, check=False)
    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_the_hubs_libraries_wait_until_they_are_needed() -> None:
    """They are most of the process's memory and start, and a machine that fetches nothing needs none."""
    heavy = ("huggingface_hub", "httpx", "httpx2", "urllib3", "llama_cpp", "numpy", "rich")
    code = f"import sys, forgelm.registry.main; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == "[]"


def test_all_its_threads_give_way(shelf: Shelf, hub: LocalHub) -> None:
    hub.faults.rate = SLOW
    with registry(shelf, hub) as process:
        job = process.ready().ask("POST", "/download", {"repo": REPO})["id"]
        beyond(process, job, 1 << 20)
        threads = [thread.id for thread in psutil.Process(process.pid).threads()]
        assert len(threads) > 2
        policies = set()
        for thread in threads:
            # One that served a request may have ended meanwhile.
            with suppress(ProcessLookupError):
                policies.add(os.sched_getscheduler(thread))
        assert policies == {os.SCHED_IDLE}


# --- ending ---


@contextmanager
def parented(shelf: Shelf, hub: LocalHub | None) -> Iterator[tuple[Process, socket.socket]]:
    """The process, and the end of the socket that it takes for its parent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        with registry(shelf, hub, str(number), pass_fds=(number,)) as process:
            theirs.close()
            yield process.ready(), ours


def test_it_ends_with_its_parent(shelf: Shelf) -> None:
    with parented(shelf, None) as (process, parent):
        parent.close()
        assert process.end() == 0
        assert not (shelf.root / "run" / "registry.sock").exists()


def test_what_a_ctrl_c_means_its_parent_decides(shelf: Shelf) -> None:
    with parented(shelf, None) as (process, _):
        process.popen.send_signal(signal.SIGINT)
        process.popen.send_signal(signal.SIGINT)
        assert process.ask("GET", "/health")["status"] == "ok"
        process.popen.terminate()
        assert process.end() == 0


def test_alone_it_ends_at_ctrl_c(shelf: Shelf) -> None:
    with registry(shelf) as process:
        process.ready().popen.send_signal(signal.SIGINT)
        assert process.end() == 0


def test_told_to_end_it_leaves_everything_in_order(shelf: Shelf, hub: LocalHub) -> None:
    """A stream, a download, a check and a request that waits for the hub are all cut short."""
    hub.faults.rate = SLOW
    huge = write_tiny(shelf.models / "huge.gguf")
    with huge.open("ab") as file:
        file.truncate(1 << 42)
    with registry(shelf, hub) as process:
        job = process.ready().ask("POST", "/download", {"repo": REPO})["id"]
        beyond(process, job, 1 << 20)
        hub.faults.latency = 2 * PATIENCE
        asking = [Asking(process, path) for path in ("/search", "/models/huge/verify")]
        until(lambda: hub.log.requests(path="filter=gguf"), "the hub was asked")
        with process.http.stream("GET", f"/downloads/{job}") as stream:
            events = read_events(stream)
            next(events)
            process.popen.terminate()
            *_, last = events
        assert process.end() == 0
        assert isinstance(last, dict)
        assert last["state"] == "downloading"
        for each in asking:
            error = error_of(each.answer(), 503)
            assert error["code"] == "registry_unavailable"
        assert "Traceback" not in process.errors, process.errors
    hub.faults.latency = 0.0
    assert list((shelf.models / REPO).glob(".*.part"))
    hub.faults.rate = None
    with registry(shelf, hub) as process:
        assert finished(process.ready(), job)["state"] == "done"
        assert right(shelf, hub)


class Asking:
    """A request in a thread of its own."""

    def __init__(self, process: Process, path: str) -> None:
        self._answers: list[httpx.Response] = []
        headers = {"accept": "application/json"}
        self._thread = threading.Thread(
            target=lambda: self._answers.append(process.http.post(path, json={}, headers=headers))
        )
        self._thread.start()

    def answer(self) -> httpx.Response:
        self._thread.join(PATIENCE)
        return self._answers[0]


# --- dying ---


def test_killed_at_any_point_it_goes_on(shelf: Shelf, hub: LocalHub) -> None:
    """The next process goes on by itself; of what was sent hardly anything is sent again."""
    hub.faults.rate = SLOW
    points = random.Random(2)
    file = hub.catalog.models[REPO].files[FILE]
    with registry(shelf, hub) as process:
        job = process.ready().ask("POST", "/download", {"repo": REPO, "file": FILE})["id"]
        hub.log.clear()
        beyond(process, job, points.randrange(1, SIZE // 6))
        process.popen.kill()
    for number in range(1, 4):
        assert not (shelf.models / REPO / FILE).exists()
        with registry(shelf, hub) as process:
            assert process.ready().ask("GET", "/models")["models"] == []
            beyond(process, job, number * SIZE // 5 + points.randrange(SIZE // 10))
            process.popen.kill()
    hub.faults.rate = None
    with registry(shelf, hub) as process:
        done = finished(process.ready(), job)
        assert (done["state"], done["model"], done["bytes"]) == ("done", f"{REPO}:Q4_K_M", SIZE)
        assert process.ask("GET", f"/models/{REPO}:Q4_K_M")["sha256"] == file.sha256
    assert right(shelf, hub)
    # Each time from the beginning, it would be three times as much.
    assert hub.log.sent(file.sha256) < 1.6 * SIZE


def test_two_of_them_share_everything(shelf: Shelf, hub: LocalHub, tmp_path: Path) -> None:
    """Two servers with one models' folder and one state: what either fetches both have, and it is fetched once."""
    hub.faults.rate = SLOW
    other = Shelf(tmp_path / "other")
    other.models, other.state = shelf.models, shelf.state
    with registry(shelf, hub) as one, registry(other, hub) as two:
        jobs = [each.ready().ask("POST", "/download", {"repo": REPO})["id"] for each in (one, two)]
        hub.faults.rate = None
        assert [finished(each, job)["state"] for each, job in zip((one, two), jobs, strict=True)] == ["done", "done"]
        assert jobs[0] != jobs[1]
        listed = [each.ask("GET", "/models")["models"] for each in (one, two)]
        assert listed[0] == listed[1]
        assert [model["id"] for model in listed[0]] == [f"{REPO}:Q4_K_M"]
        assert one.ask("POST", f"/models/{REPO}:Q4_K_M/used")["last_used"] > 0
        assert two.ask("GET", "/models")["models"][0]["last_used"] > 0
    assert right(shelf, hub)


def test_a_lost_index_is_no_loss(shelf: Shelf, hub: LocalHub, tmp_path: Path) -> None:
    outside = write_tiny(tmp_path / "outside.gguf")
    with registry(shelf, hub) as process:
        process.ready()
        process.ask("POST", "/import", {"path": str(outside)})
        assert finished(process, process.ask("POST", "/download", {"repo": REPO})["id"])["state"] == "done"
        before = process.ask("GET", "/models")
        losses: list[Callable[[Path], Any]] = [Path.unlink, lambda path: path.write_bytes(b"broken" * 999)]
        for lose in losses:
            for path in shelf.state.glob("index.sqlite*"):
                lose(path)
            assert process.ask("GET", "/models") == before
    assert len(before["models"]) == 2
