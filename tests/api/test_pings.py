"""Comment pings: on silent streams, so that proxies don't cut them, and only there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import expected
from tests.api.live import TEXT, Live, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

BUSY = {"prompt": list(expected.PROMPT), "max_tokens": 150}


@pytest.fixture(scope="module")
def patient(starter_path: Path) -> Iterator[Live]:
    """Silence of half a second is pinged. 10 ms a token, one request at a time."""
    fake = {"step": 0.01, "row": 0.01, "slots": 1}
    with running(starter_path, fake=fake, limits={"ping_seconds": 0.5}) as server:
        yield server


def test_45_a_long_prefill_is_pinged(patient: Live) -> None:
    """Proxies cut streams that say nothing while a long prompt is computed (case 45)."""
    stream = patient.stream_of(TEXT, {"prompt": [5000] * 250, "max_tokens": 3})
    assert stream.pings >= 1
    assert stream.done
    assert stream.finish == "length"


def test_waiting_in_the_queue_is_pinged(patient: Live) -> None:
    with Raw(patient.port) as first, Raw(patient.port) as second:
        first.chat(stream=True, max_tokens=3000).read_until(b"data: ", 2)
        second.chat(stream=True, max_tokens=5)
        second.read_until(b": ping\n\n", 2)
        first.leave()
        second.read_until(b"data: [DONE]")
    patient.idle()


def test_a_busy_stream_is_not_pinged(patient: Live) -> None:
    """Every token without text of its own (part of a character, or held back for a stop string) was a ping."""
    text = expected.text(patient, 150)
    stream = patient.stream_of(TEXT, {**BUSY, "stop": text[5:300] + "!"})
    assert stream.text == text
    assert stream.pings <= 3, "at most one a second while text is held back"
    assert patient.stream_of(TEXT, BUSY).pings == 0


def test_a_stream_of_tokens_without_text_is_pinged(patient: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens came, so the stream was taken for busy; but its client got no byte."""
    monkeypatch.setattr(patient.text.vocabulary, "pieces", dict.fromkeys(range(49152), b""))
    stream = patient.stream_of(TEXT, {**BUSY, "max_tokens": 300})
    assert 1 <= stream.pings <= 10
    assert stream.text == ""
    assert stream.done


def test_a_whole_answer_has_no_pings(patient: Live) -> None:
    answer = patient.post(TEXT, {"prompt": [5000] * 250, "max_tokens": 3})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_pings_come_before_the_first_byte_of_text(patient: Live) -> None:
    """From the moment of acceptance: headers, role and pings don't wait for a token."""
    with Raw(patient.port) as first, Raw(patient.port) as second:
        first.chat(stream=True, max_tokens=3000).read_until(b"data: ", 2)
        second.chat(stream=True, max_tokens=5)
        assert b'"role":"assistant"' in second.read_until(b"data: ").partition(b"\r\n\r\n")[2] + second.read_until(
            b"\n\n"
        )
        until(lambda: patient.gauges()[1] == 1, "it still waits")
    patient.idle()
