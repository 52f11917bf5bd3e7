"""Exactly one line in the log for each request, however it ends; read from what `forgelm serve` itself writes.

The engine is a process; its tokens are made up, so that answers last as long as a test wants.
"""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("fields", [{}, {"ignore_eos": True, "stop": ["e"]}], ids=["length", "stop string"])
def test_what_is_computed_is_no_waiting(slow: Served, fields: dict[str, Any]) -> None:
    line = the_line(slow, slow.chat(max_tokens=40, **fields))
    # Both are read by one clock, and a step of this engine takes 0.05 s at least.
    assert line["ttft_seconds"] - line["queue_seconds"] >= 0.0499


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
