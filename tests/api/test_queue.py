"""The queue's bounds: what is over them is told so at once, and what waits too long is told so too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

LIMITS = {"queue": 3, "queue_tokens": 2000, "queue_seconds": 1.0}


@pytest.fixture(scope="module")
def narrow(starter_path: Path) -> Iterator[Live]:
    """One request runs, three may wait, for a second, with 2,000 prompt tokens."""
    with running(starter_path, fake={"slots": 1, "step": 0.01}, limits=LIMITS) as server:
        yield server


@pytest.fixture
def busy(narrow: Live) -> Iterator[Live]:
    """The same with its one slot taken."""
    with Raw(narrow.port) as first:
        first.chat(stream=True, max_tokens=4000).read_until(b"data: ", 2)
        until(lambda: narrow.gauges() == (1, 0, 1), "one runs")
        yield narrow
    narrow.idle()
    narrow.lives()


@pytest.mark.parametrize("stream", [False, True])
def test_45_too_many_requests(busy: Live, stream: bool) -> None:
    """A full queue is a 429 that says when to come back, before anything is promised (case 45)."""
    waiting = [Raw(busy.port).chat(max_tokens=1) for _ in range(3)]
    until(lambda: busy.gauges()[1] == 3, "three wait")
    before = busy.metric("forgelm_errors_total", code="queue_full")
    answer = busy.post(CHAT, message("Hi", max_tokens=1, stream=stream))
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["error"] == {
        "message": answer.json()["error"]["message"],
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }
    assert "3 requests" in answer.json()["error"]["message"]
    assert busy.metric("forgelm_errors_total", code="queue_full") == before + 1
    for raw in waiting:
        raw.leave()


def test_45_too_many_prompt_tokens(busy: Live) -> None:
    long = {"prompt": [5000] * 1500, "max_tokens": 1}
    with Raw(busy.port).post(long, TEXT):
        until(lambda: busy.gauges()[1] == 1, "one waits")
        assert busy.post(TEXT, long).status_code == 429
        with Raw(busy.port).post({"prompt": [5000] * 400, "max_tokens": 1}, TEXT):
            until(lambda: busy.gauges()[1] == 2, "a shorter one still fits")


def test_one_request_may_wait_however_long_it_is(busy: Live) -> None:
    with Raw(busy.port).post({"prompt": [5000] * 5000, "max_tokens": 1}, TEXT):
        until(lambda: busy.gauges()[1] == 1, "it waits")


def test_45_waiting_too_long_ends_a_stream_with_an_error(busy: Live) -> None:
    """It was accepted, so its status is out: the error comes in the stream, which then ends."""
    stream = busy.stream(max_tokens=1)
    assert stream.error
    assert "1 s in the queue" in stream.error["message"]
    assert stream.error["code"] == "queue_timeout"
    assert [bool(event.get("choices")) for event in stream.events] == [True, False]
    assert not stream.done


def test_waiting_too_long_for_a_whole_answer_is_a_503(busy: Live) -> None:
    answer = busy.chat(max_tokens=1)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "1 s in the queue" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "queue_timeout"


def test_31_leaving_the_queue_disturbs_nobody(narrow: Live) -> None:
    """A client that left while it was queued ended another's stream (case 31)."""
    with Raw(narrow.port) as first:
        first.post({"prompt": list(expected.PROMPT), "max_tokens": 120, "stream": True}, TEXT)
        first.read_until(b"data: ")
        for stream in (False, True):
            raw = Raw(narrow.port).chat(max_tokens=10, stream=stream)
            until(lambda: narrow.gauges()[1] == 1, "it waits")
            raw.leave(rudely=stream)
            until(lambda: narrow.gauges() == (1, 0, 1), "it is gone, the other runs on")
        first.read_until(b"[DONE]")
    assert first.stream_text() == expected.text(narrow, 120)
    narrow.idle()


def test_requests_are_served_in_order(narrow: Live) -> None:
    with Raw(narrow.port) as first, Raw(narrow.port) as second, Raw(narrow.port) as third:
        first.chat(max_tokens=30, stream=True).read_until(b"data: ", 2)
        for number, raw in enumerate((second, third), 1):
            raw.chat(max_tokens=10)
            until(lambda waiting=number: narrow.gauges()[1] == waiting, "it waits")  # type: ignore[misc]
        assert second.response()[0] == 200
        assert narrow.metric("forgelm_requests_open") == 1
        assert third.response()[0] == 200
    narrow.idle()
