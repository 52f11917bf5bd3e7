"""Which lines about requests there are, under which names, and who waits for whoever reads them: nobody."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.logged import CHAT, HI, access, named, the_line
from tests.processes.serving import Served, serve, until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def quick(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that answers at once and wants a key."""
    with serve(tmp_path_factory.mktemp("quick"), "--api-key", "right", fake={"step": 0.002}) as server:
        server.http.headers["Authorization"] = "Bearer right"
        yield server.ready()


# --- which lines there are ---


def test_looking_is_not_worth_a_line(quick: Served) -> None:
    for path in ("/livez", "/readyz", "/health", "/metrics", "/v1/models", "/status", "/slots", "/props"):
        answer = quick.http.get(f"{quick.base}{path}")
        assert answer.status_code == 200
        assert answer.headers["x-request-id"].startswith("req_")
    last = the_line(quick, quick.chat(max_tokens=1))
    assert not [
        line for line in access(quick, level="info") if line["route"].startswith("GET") and line["status"] < 400
    ]
    assert access(quick)[-2] == last


def test_no_lines_for_whoever_wants_none(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--no-log-requests", fake={}, FORGELM_LOG_LEVEL="debug") as server:
        assert server.ready().chat().headers["x-request-id"]
        assert server.chat(temperature=9).status_code == 400
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert not access(server, process="api")
        assert "engine ready" in server.errors


def test_prompts_for_whoever_wants_them(starter_path: Path, tmp_path: Path) -> None:
    """What was asked as it came, and each answer; also of what is refused."""
    with serve(tmp_path, fake={}, FORGELM_LOG_PROMPTS="1") as server:
        answer = server.ready().chat("A question", n=2)
        line = the_line(server, answer)
        assert "A question" in line["prompt"]
        assert line["answer"] == [each["message"]["content"] for each in answer.json()["choices"]]
        with server.stream("Another", max_tokens=5) as events:
            said = "".join(each["choices"][0]["delta"].get("content", "") for each in events if each.get("choices"))
        until(lambda: len(access(server)) >= 3, "its line")
        assert access(server)[-1]["answer"] == [said]
        refused = server.chat("Refused", temperature=9)
        assert "Refused" in the_line(server, refused)["prompt"]


# --- ids ---


@pytest.mark.parametrize("name", ["mine", "a-b_c.d/e:f=g", "x" * 128, '{"a":1}', "%0a%0dforged"])
def test_a_clients_own_id_is_taken_over(quick: Served, name: str) -> None:
    answer = quick.http.post(f"{quick.base}{CHAT}", json={**HI, "max_tokens": 1}, headers=named(name))
    assert answer.headers["x-request-id"] == name
    assert answer.json()["id"].startswith("chatcmpl-")
    assert access(quick, name) or the_line(quick, answer)


@pytest.mark.parametrize("sent", [b"", b"x" * 129, b"two words", b"tab\tbed", "é".encode(), b"\xff"])
def test_an_id_that_is_none_is_replaced(quick: Served, sent: bytes) -> None:
    """Control characters the HTTP parser itself refuses."""
    headers = [(b"x-request-id", sent), (b"authorization", b"Bearer right")]
    answer = quick.http.get(f"{quick.base}/v1/models", headers=headers)
    assert answer.headers["x-request-id"].startswith("req_")
    assert len(answer.headers["x-request-id"]) == 36


def test_every_response_has_one(quick: Served) -> None:
    """Also those of the web framework, and those to whoever has no key."""
    base = quick.base
    with httpx.Client(trust_env=False) as client:
        answers = [
            client.get(f"{base}/nowhere"),
            client.put(f"{base}{CHAT}"),
            client.post(f"{base}{CHAT}", json=HI),
            client.options(f"{base}{CHAT}"),
            client.head(f"{base}/livez"),
            client.get(f"{base}/registry/models"),
            quick.http.post(f"{base}{CHAT}", json=HI | {"stream": True, "max_tokens": 1}),
            quick.http.post(f"{base}/v1/rerank", json={}),
        ]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    assert all(len(answer.headers.get_list("x-request-id")) == 1 for answer in answers)


def test_nothing_in_a_request_makes_a_line(quick: Served) -> None:
    """Line breaks that come decoded out of a path."""
    before = len(quick.errors.splitlines())
    path = "/v1/models/x%0A%7B%22event%22:%22forged%22%7D%0D%1b[2J%E2%80%A8"
    answer = quick.http.get(f"{quick.base}{path}")
    assert answer.status_code == 404
    the_line(quick, answer)
    new = quick.errors.splitlines()[before:]
    assert len(new) == 2
    assert all(line.isprintable() for line in new)
    assert not [line for line in quick.log if line["event"] == "forged"]


def test_nobody_reads_the_log(starter_path: Path, tmp_path: Path) -> None:
    """A pipe that nobody empties: the server goes on answering, and ends when it is told to."""
    reader, writer = os.pipe()
    try:
        with serve(tmp_path, fake={"step": 0.001}, stderr=writer, FORGELM_LOG_LEVEL="debug") as server:
            server.ready()
            names = [f"{'x' * 100}{number}" for number in range(600)]
            with ThreadPoolExecutor(8) as pool:
                url = f"{server.base}{CHAT}"
                posts = pool.map(
                    lambda name: server.http.post(url, json={**HI, "max_tokens": 1}, headers=named(name)), names
                )
                assert {answer.status_code for answer in posts} == {200}
            assert _unread(reader) > 32_000, "the pipe is full"
            server.signal(signal.SIGTERM)
            assert server.end() == 0
    finally:
        os.close(reader)
        os.close(writer)


def _unread(reader: int) -> int:
    import fcntl
    import struct
    import termios

    return int(struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0])


def test_somebody_reads_it_late(starter_path: Path, tmp_path: Path) -> None:
    """What was kept comes then, in order."""
    reader, writer = os.pipe()
    data: list[bytes] = []
    with serve(tmp_path, fake={"step": 0.001}, stderr=writer, FORGELM_LOG_LEVEL="debug") as server:
        os.close(writer)
        server.ready()
        for number in range(200):
            server.http.post(
                f"{server.base}{CHAT}", json={**HI, "max_tokens": 1}, headers=named(f"{'x' * 100}-{number}")
            )

        def read() -> None:
            while chunk := os.read(reader, 1 << 16):
                data.append(chunk)

        thread = threading.Thread(target=read)
        thread.start()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        thread.join()
    os.close(reader)
    text = b"".join(data).decode()
    for process in ("api", "engine"):
        event = "request" if process == "api" else "request ends"
        found = [line for line in text.splitlines() if f'"{process}"' in line and f'"{event}"' in line]
        numbers = [int(line.split("x-", 1)[1].split('"')[0]) for line in found if "xxx-" in line]
        assert numbers == list(range(200))
