"""Exactly one line in the log for each request, however it ends; read from what `forgelm serve` itself writes.

The engine is a process; its tokens are made up, so that answers last as long as a test wants.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes.serving import Served, serve, until

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def quick(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that answers at once and wants a key."""
    with serve(tmp_path_factory.mktemp("quick"), "--api-key", "right", fake={"step": 0.002}) as server:
        server.http.headers["Authorization"] = "Bearer right"
        yield server.ready()


def access(server: Served, request: str = "", **fields: Any) -> list[dict[str, Any]]:
    """The lines about requests, or about one of them."""
    wanted = {"event": "request", **({"request": request} if request else {}), **fields}
    return [line for line in server.log if line.items() >= wanted.items()]


def the_line(server: Served, answer: httpx.Response | str) -> dict[str, Any]:
    """The one line about a request. The line comes after the answer's last byte, and no second one after that."""
    name = answer if isinstance(answer, str) else answer.headers["x-request-id"]
    until(lambda: access(server, name), f"a line about {name}")
    # Whoever comes next is told of later.
    after = server.http.get(f"{server.base}/v1/nothing", headers={"x-request-id": f"after-{name}"})
    until(lambda: access(server, after.headers["x-request-id"]), "the line of the next one")
    (line,) = access(server, name)
    assert line["seconds"] > 0
    return line


def named(name: str) -> dict[str, str]:
    return {"x-request-id": name}


# --- how requests end ---


def test_a_whole_answer(quick: Served) -> None:
    answer = quick.chat(max_tokens=20)
    usage, timings = answer.json()["usage"], answer.json()["timings"]
    line = the_line(quick, answer)
    assert (line["level"], line["logger"], line["process"]) == ("info", "access", "api")
    assert (line["route"], line["status"], line["finish"]) == (f"POST {CHAT}", 200, "length")
    assert (line["model"], line["stream"]) == (answer.json()["model"], False)
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["output_tokens"] == usage["completion_tokens"] == 20
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert line["tokens_per_second"] == pytest.approx(timings["predicted_per_second"], rel=0.01)
    # The engine's clock and ours don't see the same moments.
    assert 0 <= line["queue_seconds"] <= line["ttft_seconds"] <= line["seconds"]
    assert line["prepare_seconds"] + line["ttft_seconds"] <= line["seconds"]
    assert {"error", "reason", "prompt", "answer", "choices", "tools", "structured", "drafted"}.isdisjoint(line)


def test_a_stream(quick: Served) -> None:
    with quick.http.stream("POST", f"{quick.base}{CHAT}", json={**HI, "stream": True, "max_tokens": 5}) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")
    line = the_line(quick, answer)
    assert (line["status"], line["finish"], line["stream"], line["output_tokens"]) == (200, "length", True, 5)


def test_a_stop_string_ends_an_answer(quick: Served) -> None:
    text = quick.chat(max_tokens=20, temperature=0).json()["choices"][0]["message"]["content"]
    answer = quick.chat(max_tokens=20, temperature=0, stop=[text[10:14]])
    line = the_line(quick, answer)
    assert line["finish"] == answer.json()["choices"][0]["finish_reason"] == "stop"
    assert line["output_tokens"] == answer.json()["usage"]["completion_tokens"] < 20


def test_several_choices(quick: Served) -> None:
    line = the_line(quick, quick.chat(max_tokens=4, n=3))
    assert (line["choices"], line["output_tokens"], line["finish"]) == (3, 12, "length")


def test_a_text_completion(quick: Served) -> None:
    answer = quick.http.post(f"{quick.base}/v1/completions", json={"prompt": "Once", "max_tokens": 3})
    line = the_line(quick, answer)
    assert (line["route"], line["output_tokens"]) == ("POST /v1/completions", 3)


def test_what_kind_of_answer_was_wanted(quick: Served) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    assert the_line(quick, quick.chat(tools=[tool]))["tools"] is True
    assert the_line(quick, quick.chat(guided_choice=["yes", "no"]))["structured"] is True


REFUSED: dict[str, tuple[str, str, Any, int]] = {
    "a wrong value": ("POST", CHAT, {**HI, "temperature": 9}, 400),
    "no JSON": ("POST", CHAT, b"{", 400),
    "another model": ("POST", CHAT, {**HI, "model": "other"}, 404),
    "no embedding model": ("POST", "/v1/embeddings", {"input": "x"}, 404),
    "no route": ("GET", "/v1/nowhere", None, 404),
    "no method": ("DELETE", CHAT, None, 405),
    "too long a prompt": ("POST", CHAT, {"messages": [{"role": "user", "content": "word " * 9000}]}, 400),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(quick: Served, what: str) -> None:
    method, path, body, status = REFUSED[what]
    options: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = quick.http.request(method, f"{quick.base}{path}", **({} if body is None else options))
    assert answer.status_code == status
    line = the_line(quick, answer)
    assert (line["route"], line["status"], line["level"]) == (f"{method} {path}", status, "info")
    assert line["error"] == answer.json()["error"]["code"]
    assert "reason" not in line, "what a refusal says may quote the request"


def test_a_wrong_key(quick: Served) -> None:
    answer = quick.http.post(f"{quick.base}{CHAT}", json=HI, headers={"Authorization": "Bearer guess"})
    line = the_line(quick, answer)
    assert (line["status"], line["error"], line["level"]) == (401, "invalid_api_key", "info")
    assert "guess" not in quick.errors
    assert "right" not in quick.errors


def test_a_client_that_leaves_its_stream(slow: Served) -> None:
    with slow.http.stream("POST", f"{slow.base}{CHAT}", json={**HI, "stream": True, "max_tokens": 5000}) as answer:
        lines = answer.iter_lines()
        next(lines)
    line = the_line(slow, answer)
    assert (line["status"], line["finish"], line["level"]) == (499, "abort", "info")


def test_a_client_that_does_not_wait_for_its_answer(slow: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post(f"{slow.base}{CHAT}", json={**HI, "max_tokens": 5000}, headers=named("left"), timeout=0.5)
    line = the_line(slow, "left")
    assert (line["status"], line["finish"]) == (499, "abort")


def test_a_client_that_leaves_in_the_middle_of_its_request(quick: Served) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\nX-Request-Id: half\r\n"
    with socket.create_connection(("127.0.0.1", quick.port)) as connection:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf of it".encode())
    assert the_line(quick, "half")["status"] == 499


@pytest.fixture(scope="module")
def slow(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one slot, whose answers last."""
    with serve(tmp_path_factory.mktemp("slow"), "--queue", "1", fake={"step": 0.05, "slots": 1}) as server:
        yield server.ready()


def test_a_full_queue(slow: Served) -> None:
    body = {**HI, "stream": True, "max_tokens": 5000}
    with slow.http.stream("POST", f"{slow.base}{CHAT}", json=body, headers=named("runs")) as running:
        # A generator that nobody holds closes its response.
        held = [running.iter_lines()]
        next(held[0])
        until(lambda: [each["stage"] for each in _open(slow)] == ["decode"], "it runs")
        with slow.http.stream("POST", f"{slow.base}{CHAT}", json=body, headers=named("waits")) as waiting:
            held.append(waiting.iter_lines())
            next(held[1])
            refused = slow.http.post(f"{slow.base}{CHAT}", json=HI)
    line = the_line(slow, refused)
    assert (line["status"], line["error"], line["level"]) == (429, "queue_full", "info")
    assert "output_tokens" not in line
    line = the_line(slow, "waits")
    assert (line["finish"], line["output_tokens"], "ttft_seconds" in line) == ("abort", 0, False)
    assert line["queue_seconds"] > 0
    assert the_line(slow, "runs")["output_tokens"] > 0


def test_the_engine_is_killed(starter_path: Path, tmp_path: Path) -> None:
    """One line each for a stream, a whole answer and one that waits; and one that comes while there is no engine."""
    with serve(tmp_path, fake={"step": 0.05, "slots": 2}) as server:
        engine = server.ready().engine
        body = {**HI, "max_tokens": 5000}
        with ThreadPoolExecutor(3) as pool:
            bodies = {"whole": body, "stream": {**body, "stream": True}, "waits": body}
            asked = []
            for number, (name, each) in enumerate(bodies.items(), 1):
                asked.append(pool.submit(server.http.post, f"{server.base}{CHAT}", json=each, headers=named(name)))
                until(lambda count=number: len(_open(server)) == count, f"{number} are open")  # type: ignore[misc]
            until(lambda: sum(each["generated_tokens"] > 0 for each in _open(server)) == 2, "two are answered")
            os.kill(engine, signal.SIGKILL)
            answers = [each.result() for each in asked]
        assert [answer.status_code for answer in answers] == [503, 200, 503]
        late = server.chat()
        assert late.status_code == 503
        server.ready()
        for name, status in (("whole", 503), ("stream", 200), ("waits", 503)):
            line = the_line(server, name)
            assert (line["status"], line["finish"], line["error"]) == (status, "error", "engine_error")
            assert (line["level"], line["reason"]) == ("warning", "the engine was killed by signal 9")
            assert (line["output_tokens"] > 0) == (name != "waits")
        line = the_line(server, late)
        assert (line["status"], line["error"], line["level"]) == (503, "engine_unavailable", "warning")


def _open(server: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.http.get(f"{server.base}/status").json()["requests"]
    return found


@pytest.mark.parametrize("signals", [1, 2])
def test_the_server_ends(starter_path: Path, tmp_path: Path, signals: int) -> None:
    """A first signal lets answers end by themselves, a second one ends them."""
    with serve(tmp_path, fake={"step": 0.05}) as server:
        server.ready()
        body = {**HI, "stream": True, "max_tokens": 30 if signals == 1 else 5000}
        with server.http.stream("POST", f"{server.base}{CHAT}", json=body, headers=named("last")) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            if signals == 2:
                until(lambda: _refuses(server), "the server ends")
                server.signal(signal.SIGTERM)
            assert list(lines)
        assert server.end() == 0
        (line,) = access(server, "last")
    if signals == 1:
        assert (line["finish"], line["output_tokens"], line["level"]) == ("length", 30, "info")
    else:
        assert (line["finish"], line["level"]) == ("error", "warning")
        assert line["reason"] == "the server is shutting down"


def _refuses(server: Served) -> bool:
    try:
        httpx.get(f"{server.base}/livez", trust_env=False)
    except (httpx.TransportError, AssertionError):
        return True
    return False


def test_a_line_for_each_of_many(quick: Served) -> None:
    before = len(access(quick, route=f"POST {CHAT}"))
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: quick.chat(max_tokens=3), range(60)))
    names = {answer.headers["x-request-id"] for answer in answers}
    assert len(names) == 60
    until(lambda: len(access(quick, route=f"POST {CHAT}")) >= before + 60, "a line for each")
    the_line(quick, answers[0])
    lines = access(quick, route=f"POST {CHAT}")[before:]
    assert {line["request"] for line in lines} == names
    assert len(lines) == 60


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
