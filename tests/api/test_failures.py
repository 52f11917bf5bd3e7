"""Bugs of ours, and the server's end: clients still get an answer in order."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api import expected
from tests.api.live import TEXT, Live, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

BODY: dict[str, Any] = {"prompt": list(expected.PROMPT), "max_tokens": 10}


def test_a_bug_inside_a_stream_is_said_in_the_stream(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status was out when it happened, so the connection was cut: clients can't tell that from a bad network."""
    first, *_ = expected.tokens(1)
    monkeypatch.setattr(live.text.vocabulary, "pieces", {first: b"fine"})
    stream = live.stream_of(TEXT, BODY)
    assert stream.text == "fine"
    assert stream.error
    assert stream.error["code"] == "internal_error"
    assert "KeyError" not in stream.error["message"]


def test_a_bug_before_a_whole_answer_is_a_500(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.text.vocabulary, "pieces", {})
    answer = live.post(TEXT, BODY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.json()["error"]["type"] == "server_error"


def test_a_bug_in_preparing_is_a_500(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(live.text.preparer, "completion", broken)
    answer = live.post(TEXT, BODY)
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_a_long_prompt_is_prepared_off_the_loop(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32k tokens take tens of milliseconds to decode, template and tokenize: streams must not wait for that. Here the
    preparation is held until a stream that ran before it has gone on for twenty chunks and ended."""
    with running(starter_path, fake={"context": 40_000, "step": 0.005}) as server, ThreadPoolExecutor() as pool:
        prepare, threads, streamed = server.text.preparer.chat, [], threading.Event()

        def held(body: bytes, context: int) -> Any:
            threads.append(threading.current_thread().name)
            if len(body) > 100_000:
                assert streamed.wait(20), "the stream stood still meanwhile"
            return prepare(body, context)

        monkeypatch.setattr(server.text.preparer, "chat", held)
        with Raw(server.port) as stream:
            stream.chat(stream=True, max_tokens=300).read_until(b"data: ", 3)
            long = pool.submit(server.chat, "word " * 32_000, max_tokens=2)
            until(lambda: len(threads) == 2, "the long prompt is being prepared")
            stream.read_until(b"data: ", 25)
            assert server.http.get("/livez").status_code == 200
            streamed.set()
            stream.read_until(b"data: [DONE]")
        answer = long.result()
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] > 32_000
        assert threads[0] == "server", "a short one isn't worth a thread"
        assert threads[1] != "server"


def test_streams_may_end_while_the_server_stops(starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.01}) as server, Raw(server.port) as raw:
        raw.post({**BODY, "max_tokens": 150, "stream": True}, TEXT).read_until(b"data: ", 2)
        server.stop()
        assert b"data: [DONE]" in raw.read_all()
        assert raw.stream_text() == expected.text(server, 150)


def test_streams_past_the_drain_get_a_last_word(starter_path: Path) -> None:
    """They were cut in the middle, with a traceback in the log for each; and the engine then computed on for them."""
    running_briefly = running(starter_path, fake={"step": 0.01}, limits={"drain_seconds": 1.0})
    with running_briefly as server, Raw(server.port) as raw, Raw(server.port) as whole:
        raw.chat(stream=True, max_tokens=5000).read_until(b"data: ", 2)
        whole.chat(max_tokens=5000)
        until(lambda: server.gauges()[0] == 2, "both run")
        began = time.monotonic()
        server.stop()
        assert b"the server is shutting down" in raw.read_all()
        status, body = whole.response()
        assert (status, body["error"]["message"]) == (503, "the server is shutting down")
    assert time.monotonic() - began < 10


def test_without_a_drain_the_last_word_comes_at_once(starter_path: Path) -> None:
    briefly = running(starter_path, fake={"step": 0.01}, limits={"drain_seconds": 0.0})
    with briefly as server, Raw(server.port) as raw:
        raw.chat(stream=True, max_tokens=100_000).read_until(b"data: ", 2)
        server.stop()
        assert b"the server is shutting down" in raw.read_all()


def test_a_stopping_server_takes_no_new_requests(starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.01}) as server, Raw(server.port) as raw:
        raw.chat(stream=True, max_tokens=100).read_until(b"data: ", 2)
        server.stop()
        until(lambda: _refused(server.port), "connections are refused")
        assert b"data: [DONE]" in raw.read_all()


def _refused(port: int) -> bool:
    try:
        Raw(port).leave()
    except ConnectionRefusedError:
        return True
    return False
