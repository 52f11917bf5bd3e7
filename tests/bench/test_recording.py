"""The proxy between real clients and real servers: nothing changes, shapes are written, words aren't."""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forgelm.bench.recording import Recording
from forgelm.bench.serving import free_port
from forgelm.errors import ConfigError
from tests.api.live import message, running, until
from tests.bench.other import Other, other
from tests.bench.tapping import STREAM, Tap, tap

SECRET = "xyzzy"


def raw(port: int, data: bytes) -> bytes:
    """All that comes back for bytes, on one connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


def request(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


# ---- nothing changes -------------------------------------------------------------------------------------------------


def without_date(data: bytes) -> bytes:
    return b"\r\n".join(line for line in data.split(b"\r\n") if not line.startswith(b"Date:"))


@pytest.mark.parametrize(
    "body",
    [
        message("Hello", max_tokens=4, **STREAM),
        message("Hello", max_tokens=4),
        message("Hello", forbidden=True),
        {"prompt": "Hello", "max_tokens": 3, "stream": True},
    ],
)
def test_answers_and_errors_come_byte_for_byte(body: dict[str, Any], tmp_path: Path) -> None:
    with other(refuses=frozenset({"forbidden"})) as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        path = "/v1/completions?q=1" if "prompt" in body else "/v1/chat/completions"
        direct, through = raw(server.port, request(body, path)), raw(proxy.port, request(body, path))
        assert server.raw[0] == server.raw[1]
    assert without_date(through) == without_date(direct)
    assert direct.startswith(b"HTTP/1.1 400" if "forbidden" in body else b"HTTP/1.1 200")


def test_other_routes_pass_too_and_are_not_recorded(tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        with httpx.Client(base_url=url, trust_env=False) as http:
            # On one connection, one after another.
            assert http.get("/v1/models").json()["data"][0]["id"] == "other-1"
            assert http.get("/nothing").status_code == 404
            assert http.post("/v1/chat/completions", json=message("Hello", max_tokens=2)).status_code == 200
            assert http.get("/version").json() == {"version": "9.9"}
            assert http.post("/v1/chat/completions", json=message("Hello", max_tokens=3)).status_code == 200
    _, recorded = proxy.read()
    assert [each.output_tokens for each in recorded] == [2, 3]


def test_the_host_is_the_servers_and_a_path_before_v1_is_put_there(tmp_path: Path) -> None:
    with other() as server, tap(f"{server.url}/proxy/api/v1", tmp_path / "t.jsonl") as proxy:
        proxy.post("/v1/chat/completions", message("Hello", max_tokens=1))
        assert server.hosts == [f"127.0.0.1:{server.port}"]
        assert server.raw[0][0] == "/proxy/api/v1/chat/completions"


def test_a_body_in_chunks_arrives_and_is_recorded(starter_path: Path, tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        data = json.dumps(message("Hello", max_tokens=3)).encode()
        yield data[:9]
        yield data[9:]

    with running(starter_path) as live, tap(f"http://127.0.0.1:{live.port}", tmp_path / "t.jsonl") as proxy:
        url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
        answer = httpx.post(url, content=pieces(), trust_env=False, timeout=30.0)
        assert answer.json()["usage"]["completion_tokens"] == 3
    assert [each.output_tokens for each in proxy.read()[1]] == [3]


def test_a_client_that_hangs_up_is_one_for_the_server_too(starter_path: Path, tmp_path: Path) -> None:
    """Else the server would generate to the end for a recording."""
    with (
        running(starter_path, fake={"step": 0.02}) as live,
        tap(f"http://127.0.0.1:{live.port}", tmp_path / "t.jsonl") as proxy,
    ):
        url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
        body = message("Hello", max_tokens=4000, ignore_eos=True, stream=True)
        with httpx.stream("POST", url, json=body, trust_env=False) as response:
            next(response.iter_lines())
        live.idle()
        assert proxy.recording
        proxy.wait(1)
    (found,) = proxy.read()[1]
    assert (found.status, found.counted) == (200, False)
    assert (found.output_tokens or 0) < 4000


def test_a_server_that_is_not_there_is_a_502(tmp_path: Path) -> None:
    with tap(f"http://127.0.0.1:{free_port()}", tmp_path / "t.jsonl") as proxy:
        answer = proxy.post("/v1/chat/completions", message("Hello"))
    assert answer.status_code == 502
    assert "can't be reached" in answer.json()["error"]["message"]


@pytest.mark.parametrize("data", [b"[" * 100_000, b"nonsense", b"[]", b'"x"', b'{"messages": [[["' + b"x" * 70_000])
def test_what_can_not_be_read_passes_all_the_same(data: bytes, tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        raw(proxy.port, head.encode() + data)
        assert [each for _, each in server.raw] == [data]
        assert proxy.post("/v1/chat/completions", message("Hello", max_tokens=1)).status_code == 200
    assert len(proxy.read()[1]) == 1


def test_what_is_no_http_is_hung_up_on(tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        assert raw(proxy.port, b"nonsense\r\n\r\n") == b""
        assert proxy.post("/v1/chat/completions", message("Hello", max_tokens=1)).status_code == 200
    assert len(proxy.read()[1]) == 1


# ---- what is written -------------------------------------------------------------------------------------------------


def test_shapes_are_written_with_what_the_server_counted(starter_path: Path, tmp_path: Path) -> None:
    with running(starter_path) as live, tap(f"http://127.0.0.1:{live.port}", tmp_path / "t.jsonl") as proxy:
        body = message("How are you?", max_tokens=5, temperature=0.5, ignore_eos=True)
        plain = proxy.post("/v1/chat/completions", body).json()
        proxy.post("/v1/chat/completions", {**body, **STREAM})
    head, (first, second) = proxy.read()
    assert (head.text, head.trace) == (False, 1)
    assert (first.prompt_tokens, first.output_tokens, first.counted) == (plain["usage"]["prompt_tokens"], 5, True)
    assert (first.stream, second.stream, first.max_tokens) == (False, True, 5)
    assert (first.sampling, first.finish) == ({"temperature": 0.5, "ignore_eos": True}, "length")
    assert first.parts == second.parts
    assert second.cached_tokens > 0
    assert (first.ttft, first.body) == (None, None)
    assert second.ttft
    assert second.seconds
    assert 0 < second.ttft <= second.seconds
    assert 0 < first.at < second.at


def test_a_stream_without_usage_is_counted_by_its_pieces(tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        proxy.post("/v1/chat/completions", message("Hello", max_tokens=7, stream=True))
        assert "stream_options" not in server.bodies[0], "nothing is put into a request"
    (found,) = proxy.read()[1]
    assert (found.output_tokens, found.counted, found.prompt_tokens) == (7, False, None)


def test_answers_that_are_sent_back_are_linked(tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        answer = proxy.post("/v1/chat/completions", message("Hello", max_tokens=3)).json()
        said = answer["choices"][0]["message"]
        again = {"messages": [{"role": "user", "content": "Hello"}, said, {"role": "user", "content": "And?"}]}
        proxy.post("/v1/chat/completions", again)
    first, second = proxy.read()[1]
    assert [part.answer_of for part in second.parts] == [None, 0, None]
    assert second.parts[0] == first.parts[0]


def test_failures_are_written_with_their_status(tmp_path: Path) -> None:
    with other(statuses=(429,)) as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        assert proxy.post("/v1/chat/completions", message("Hello")).status_code == 429
    assert [(each.status, each.output_tokens) for each in proxy.read()[1]] == [(429, None)]


def test_a_compressed_answer_is_read(tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 8, "completion_tokens": 1}
    data = gzip.compress(json.dumps({**answer, "usage": usage}).encode())
    reply = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while b"Hello" not in received:
                    received += connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        with tap(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "t.jsonl") as proxy:
            assert proxy.post("/v1/chat/completions", message("Hello")).json()["usage"] == usage
        thread.join()
    assert [(each.prompt_tokens, each.output_tokens) for each in proxy.read()[1]] == [(8, 1)]


def secretive(proxy: Tap) -> None:
    body = message(SECRET, max_tokens=3, user=SECRET, stop=[SECRET], **STREAM)
    proxy.post(f"/v1/chat/completions?q={SECRET}", body, headers={"Authorization": SECRET, "X-Request-Id": SECRET})
    proxy.post("/v1/chat/completions", {"messages": SECRET, "refused": True})
    proxy.post(f"/{SECRET}/completions", {"prompt": SECRET, "suffix": SECRET, "max_tokens": 2})
    proxy.post("/v1/chat/completions", message(SECRET, refused=True))


def test_without_text_no_word_is_in_the_file(tmp_path: Path) -> None:
    with other(refuses=frozenset({"refused"})) as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        secretive(proxy)
        assert sum(SECRET.encode() in data for _, data in server.raw) == 4, "the server was told all of it"
    text = proxy.path.read_text()
    assert SECRET not in text
    assert "word1" not in text, "nor is a word of an answer"
    assert len(proxy.read()[1]) >= 3


def test_with_text_the_bodies_are(tmp_path: Path) -> None:
    body = message("Hello", max_tokens=2, user="somebody")
    with other() as server, tap(server.url, tmp_path / "t.jsonl", text=True) as proxy:
        proxy.post("/v1/chat/completions", body)
    head, (found,) = proxy.read()
    assert (head.text, found.body) == (True, body)


def test_a_trace_is_for_its_owner_alone_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recording(path, text=False):
        pass
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists already"):
        Recording(path, text=False)
    with pytest.raises(ConfigError, match="can't be written"):
        Recording(tmp_path / "nowhere" / "t.jsonl", text=False)


def test_many_clients_at_once_are_kept_apart(tmp_path: Path) -> None:
    def ask(proxy: Tap, server: Other, number: int) -> None:
        body = message(f"{number} " * 5, max_tokens=number + 1, **STREAM)
        assert f'"completion_tokens": {number + 1}' in proxy.post("/v1/chat/completions", body).text

    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        threads = [threading.Thread(target=ask, args=(proxy, server, number)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded = proxy.read()[1]
    assert sorted(each.output_tokens or 0 for each in recorded) == list(range(1, 13))
    assert sorted(each.number for each in recorded) == list(range(12))
    assert all(each.max_tokens == each.output_tokens for each in recorded)


def test_a_full_disk_stops_the_recording_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        assert proxy.post("/v1/chat/completions", message("Hello", max_tokens=1)).status_code == 200
        assert proxy.recording
        proxy.wait(1)
        with Path("/dev/full").open("wb", buffering=0) as full, monkeypatch.context() as patch:
            patch.setattr(proxy.recording, "_file", full)
            assert proxy.post("/v1/chat/completions", message("Hello", max_tokens=1)).status_code == 200
            until(lambda: proxy.recording and proxy.recording.problem, "the disk is full")
        assert proxy.post("/v1/chat/completions", message("Hello", max_tokens=1)).status_code == 200
    assert (proxy.recording.written, proxy.recording.problem) == (1, "No space left on device")
