"""Several answers to one request: each its own, and all of them one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm.engine.fake import fake_token
from tests.api import expected
from tests.api.joined import Joined, joined
from tests.api.live import CHAT, TEXT, Live, Stream, message, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

PROMPT = list(expected.PROMPT)


def pieces(live: Live, count: int, choice: int) -> list[str]:
    """The first `count` tokens of one choice's answer, as text."""
    history = list(PROMPT)
    for _ in range(count):
        history.append(fake_token(history, choice))
    return [live.text.vocabulary.pieces[token].decode() for token in history[len(PROMPT) :]]


def texts(live: Live, count: int, choices: int) -> list[str]:
    return ["".join(pieces(live, count, choice)) for choice in range(choices)]


def complete(live: Live, **fields: Any) -> dict[str, Any]:
    answer = live.post(TEXT, {"prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(live: Live, **fields: Any) -> Stream:
    stream = live.stream_of(TEXT, {"prompt": PROMPT, "stream_options": {"include_usage": True}, **fields})
    assert stream.done
    return stream


def split(stream: Stream, count: int) -> list[Joined]:
    return joined(stream.events, count)


# --- whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8])
def test_11_each_choice_has_its_place_and_all_are_counted(live: Live, n: int) -> None:
    """Choices were missing, or their tokens weren't counted (case 11)."""
    answer = complete(live, max_tokens=6, n=n)
    assert [choice["index"] for choice in answer["choices"]] == list(range(n))
    assert [choice["text"] for choice in answer["choices"]] == texts(live, 6, n)
    assert len(set(texts(live, 6, n))) == n
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 6 * n, 3 + 6 * n)


def test_chats_have_choices_too(live: Live) -> None:
    answer = live.chat(n=3, max_tokens=4).json()
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(contents)) == 3
    assert [choice["message"]["role"] for choice in answer["choices"]] == ["assistant"] * 3
    assert live.chat(n=1, max_tokens=4).json()["choices"][0]["message"]["content"] == contents[0]


def test_the_most_choices_there_may_be(live: Live) -> None:
    answer = complete(live, max_tokens=1, n=128)
    assert [choice["index"] for choice in answer["choices"]] == list(range(128))
    assert answer["usage"]["completion_tokens"] == 128


def test_all_choices_are_one_request(live: Live) -> None:
    before = live.metric("forgelm_requests_total", reason="length")
    complete(live, max_tokens=3, n=4)
    live.idle()
    assert live.metric("forgelm_requests_total", reason="length") == before + 1


# --- streamed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5])
def test_streamed_choices_are_the_whole_ones(live: Live, n: int) -> None:
    stream = streamed(live, max_tokens=9, n=n)
    choices = split(stream, n)
    assert [choice.content for choice in choices] == texts(live, 9, n)
    assert [choice.finish for choice in choices] == ["length"] * n
    assert stream.events[-1]["choices"] == []
    assert stream.events[-1]["usage"]["completion_tokens"] == 9 * n


def test_each_streamed_choice_of_a_chat_says_its_role_first(live: Live) -> None:
    stream = live.stream(n=3, max_tokens=4)
    assert [event["choices"][0]["index"] for event in stream.events[:3]] == [0, 1, 2]
    assert [choice.roles for choice in joined(stream.events, 3)] == [["assistant"]] * 3


def test_a_stream_names_one_answer_and_times_it_once(live: Live) -> None:
    """Choices that ended in the same step were each sent with the timings of all."""
    stream = live.stream_of(TEXT, {"prompt": PROMPT, "n": 3, "max_tokens": 4})
    assert len({event["id"] for event in stream.events}) == 1
    timed = [event for event in stream.events if "timings" in event]
    assert timed == stream.events[-1:]
    assert timed[0]["timings"]["predicted_n"] == 12
    assert all(len(event["choices"]) == 1 for event in stream.events)


# --- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stopping", [0, 1, 2])
def test_a_stop_string_ends_its_choice_alone(live: Live, stopping: int, stream: bool) -> None:
    whole = texts(live, 30, 3)
    mine = pieces(live, 30, stopping)
    stop = next(
        "".join(mine[at : at + 2])
        for at in range(5, 20)
        if all("".join(mine[at : at + 2]) not in text for text in whole[:stopping] + whole[stopping + 1 :])
    )
    wanted = [text[: text.index(stop)] if stop in text else text for text in whole]
    reasons = ["stop" if choice == stopping else "length" for choice in range(3)]
    if stream:
        events = streamed(live, max_tokens=30, n=3, stop=stop)
        choices = split(events, 3)
        assert [choice.content for choice in choices] == wanted
        assert [choice.finish for choice in choices] == reasons
        usage = events.events[-1]["usage"]
    else:
        answer = complete(live, max_tokens=30, n=3, stop=stop)
        assert [choice["text"] for choice in answer["choices"]] == wanted
        assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
        usage = answer["usage"]
    assert 60 < usage["completion_tokens"] < 90


def test_an_end_token_ends_its_choice_alone(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    history = list(PROMPT)
    for _ in range(5):
        history.append(fake_token(history, 1))
    monkeypatch.setattr(live.text.preparer, "_end_tokens", (history[-1],))
    answer = complete(live, max_tokens=9, n=2)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "stop"]
    assert answer["choices"][1]["text"] == "".join(pieces(live, 4, 1))
    assert answer["usage"]["completion_tokens"] == 9 + 5


def test_stopped_in_every_choice_the_request_is_over(live: Live) -> None:
    """No choice waits for its `max_tokens` when all have met their stop string."""
    before = live.metric("forgelm_requests_total", reason="stop")
    stops = ["".join(pieces(live, 8, choice)[6:]) for choice in range(3)]
    answer = complete(live, max_tokens=8000, n=3, stop=stops)
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    live.idle()
    assert live.metric("forgelm_requests_total", reason="stop") == before + 1


# --- more than run at once ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(starter_path: Path) -> Iterator[Live]:
    """Two requests run at once."""
    with running(starter_path, fake={"slots": 2}) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_more_choices_than_run_at_once(narrow: Live, stream: bool) -> None:
    if stream:
        found = [choice.content for choice in split(streamed(narrow, max_tokens=6, n=5), 5)]
    else:
        found = [choice["text"] for choice in complete(narrow, max_tokens=6, n=5)["choices"]]
    assert found == texts(narrow, 6, 5)
    narrow.idle()


def test_others_are_answered_beside_many_choices(narrow: Live) -> None:
    with Raw(narrow.port) as many:
        many.post({"prompt": PROMPT, "n": 20, "max_tokens": 200, "stream": True}, TEXT)
        many.read_until(b"data: ", 2)
        narrow.lives()
    narrow.idle()


# --- leaving and failing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_takes_all_choices_along(narrow: Live, stream: bool) -> None:
    before = narrow.metric("forgelm_requests_total", reason="abort")
    raw = Raw(narrow.port).post({"prompt": PROMPT, "n": 6, "max_tokens": 3000, "stream": stream}, TEXT)
    if stream:
        raw.read_until(b"data: ", 4)
    until(lambda: narrow.gauges()[0] == 2, "two run")
    raw.leave(rudely=True)
    narrow.idle()
    assert narrow.metric("forgelm_requests_total", reason="abort") == before + 1
    generated = narrow.metric("forgelm_generated_tokens_total")
    narrow.lives()
    assert narrow.metric("forgelm_generated_tokens_total") == generated + 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_fails_all_choices_at_once(starter_path: Path, stream: bool) -> None:
    with running(starter_path, fake={"crash_at": 8}) as server:
        body = {"prompt": PROMPT, "n": 3, "max_tokens": 50}
        if stream:
            answer = server.stream_of(TEXT, body)
            assert not answer.done
            assert answer.error is not None
            assert [choice.finish for choice in joined(answer.events[:-1], 3)] == [None] * 3
        else:
            response = server.post(TEXT, body)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_error"


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 2, "best_of": 0}, "best_of"),
    ],
    ids=json.dumps,
)
def test_choices_that_cant_be_made(live: Live, path: str, fields: dict[str, Any], param: str) -> None:
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    answer = live.post(path, good | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("n", [1, 3])
def test_the_best_of_as_many_as_are_wanted_are_those(live: Live, n: int) -> None:
    assert len(complete(live, max_tokens=2, n=n, best_of=n)["choices"]) == n
