"""Clients that leave: the engine forgets their requests at once, and nobody else notices."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def slow(starter_path: Path) -> Iterator[Live]:
    """Answers take as long as on a real CPU: 5 ms a token, 2 ms for each of the prompt's."""
    with running(starter_path, fake={"step": 0.005, "row": 0.002, "slots": 4}) as server:
        yield server


def aborts(server: Live) -> float:
    return server.metric("forgelm_requests_total", reason="abort")


def tokens(server: Live) -> float:
    return server.metric("forgelm_generated_tokens_total")


@pytest.mark.parametrize("rudely", [False, True])
def test_30_leaving_mid_stream(slow: Live, rudely: bool) -> None:
    """The engine went on computing for nobody, and the next client waited (case 30)."""
    before = aborts(slow)
    raw = Raw(slow.port).chat(stream=True, max_tokens=6000)
    raw.read_until(b"data: ", 5)
    raw.leave(rudely=rudely)
    slow.idle()
    assert aborts(slow) == before + 1
    generated = tokens(slow)
    slow.lives()
    assert tokens(slow) == generated + 2, "the engine computes nothing for who has left"


@pytest.mark.parametrize("rudely", [False, True])
def test_leaving_with_a_request_behind_the_one_that_is_answered(
    slow: Live, rudely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn told the second request alone, and the stream of the first ended as a bug of ours, with a traceback."""
    before = aborts(slow), slow.metric("forgelm_aborts_total", reason="client_left")
    raw = Raw(slow.port).chat(stream=True, max_tokens=6000).chat(max_tokens=5)
    raw.read_until(b"data: ", 5)
    raw.leave(rudely=rudely)
    slow.idle()
    assert (aborts(slow), slow.metric("forgelm_aborts_total", reason="client_left")) == (before[0] + 1, before[1] + 1)
    assert {dict(labels)["reason"] for labels in slow.samples("forgelm_aborts_total")} == {"client_left"}
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("rudely", [False, True])
def test_leaving_before_a_whole_answer(slow: Live, rudely: bool) -> None:
    before = aborts(slow)
    raw = Raw(slow.port).chat(max_tokens=6000)
    until(lambda: slow.gauges()[0] == 1, "it runs")
    raw.leave(rudely=rudely)
    slow.idle()
    assert aborts(slow) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_32_leaving_during_prefill(slow: Live, stream: bool) -> None:
    """Eight seconds of prompt: the engine stops after the chunk at hand, half a second at most (case 32)."""
    before = aborts(slow)
    raw = Raw(slow.port).post({"prompt": [5000] * 4000, "max_tokens": 5, "stream": stream}, TEXT)
    until(lambda: slow.metric("forgelm_kv_cells_used") > 0, "it computes")
    raw.leave()
    until(lambda: slow.gauges() == (0, 0, 0), "it stops", seconds=4)
    assert slow.metric("forgelm_kv_cells_used") == 0
    assert aborts(slow) == before + 1


def test_others_stream_on(slow: Live) -> None:
    """One of four leaves each way; the fourth's text is what it is alone."""
    with Raw(slow.port) as stays:
        stays.post({"prompt": list(expected.PROMPT), "max_tokens": 150, "stream": True}, TEXT)
        leavers = [Raw(slow.port).chat(stream=stream, max_tokens=5000) for stream in (True, False)]
        leavers.append(Raw(slow.port).post({"prompt": [5000] * 3000, "max_tokens": 5}, TEXT))
        until(lambda: slow.gauges()[0] == 4, "all run")
        for raw in leavers:
            raw.leave(rudely=True)
        stays.read_until(b"data: [DONE]")
    assert stays.stream_text() == expected.text(slow, 150)
    slow.idle()


def test_many_come_and_go(slow: Live) -> None:
    """Whatever the moment of leaving, nothing is left behind."""
    before = slow.metric("forgelm_requests_total", reason="length")
    for number in range(40):
        stream = number % 3 > 0
        raw = Raw(slow.port).chat(stream=stream, max_tokens=2000)
        if stream and number % 4 == 1:
            raw.read_until(b"\r\n\r\n")
        elif stream and number % 4 == 2:
            raw.read_until(b"data: ", 2)
        raw.leave(rudely=number % 2 > 0)
    slow.idle()
    slow.lives()
    assert slow.metric("forgelm_requests_total", reason="length") == before + 1


@pytest.mark.parametrize("rudely", [False, True])
def test_leaving_while_sending(slow: Live, rudely: bool) -> None:
    """A client that left in the middle of its body was logged as a failure of the server's, with a traceback."""
    before = slow.metric("forgelm_errors_total", code="internal_error")
    raw = Raw(slow.port)
    raw.send(f'POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{"messages": ['.encode())
    raw.leave(rudely=rudely)
    slow.lives()
    assert slow.metric("forgelm_errors_total", code="internal_error") == before


def test_shutting_only_the_sending_side(slow: Live) -> None:
    """A half-closed connection counts as left: no client of this API closes one half and goes on reading."""
    import socket

    with Raw(slow.port) as raw:
        raw.chat(stream=True, max_tokens=3000).read_until(b"data: ", 2)
        raw.socket.shutdown(socket.SHUT_WR)
        slow.idle()


def test_a_second_request_on_the_same_connection(slow: Live) -> None:
    """Pipelined: it waits for the first and is answered."""
    body = json.dumps(message("Hi", max_tokens=3)).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with Raw(slow.port) as raw:
        raw.send(request + request)
        assert raw.read_until(b'"object":"chat.completion"', 2).count(b"HTTP/1.1 200") == 2


def test_a_slow_reader_holds_up_nobody(starter_path: Path) -> None:
    """Who doesn't read gets nothing more once its connection is full; its text is merged meanwhile, not queued chunk
    by chunk, the engine goes on for everybody, and in the end nothing is missing."""
    count = 4000
    with (
        running(starter_path, fake={"step": 0.0}, send_buffer=4096) as server,
        Raw(server.port, receive_buffer=4096) as reader,
    ):
        reader.post({"prompt": list(expected.PROMPT), "max_tokens": count, "stream": True}, TEXT)
        assert server.chat(max_tokens=50).status_code == 200
        until(lambda: server.metric("forgelm_requests_total", reason="length") == 2, "both are computed")
        server.idle()
        reader.read_until(b"data: [DONE]")
        assert reader.stream_text() == expected.text(server, count)
        assert reader.received.count(b"data: {") < count
