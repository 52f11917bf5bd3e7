"""The shape of answers, whole and streamed: OpenAI's, field by field."""

import re
from typing import Any

import pytest

from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, Stream, message

pytestmark = pytest.mark.server

COMMON = {"id", "object", "created", "model", "choices"}
TEXT_BODY: dict[str, Any] = {"prompt": list(expected.PROMPT), "max_tokens": 3}


def test_chat_stream_is_role_then_text_then_finish_then_done(live: Live) -> None:
    stream = live.stream("Hello", max_tokens=3)
    assert stream.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    role, *text, final = [event["choices"][0] for event in stream.events]
    assert role["delta"] == {"role": "assistant", "content": ""}
    assert 1 <= len(text) <= 3, "one per token, or fewer if they are merged"
    assert all(choice["delta"].keys() == {"content"} for choice in text)
    assert {choice["finish_reason"] for choice in (role, *text)} == {None}
    assert final["delta"] == {}
    assert final["finish_reason"] == "length"
    assert stream.done


def test_every_chunk_has_one_identity(live: Live) -> None:
    events = live.stream("Hello", max_tokens=3, stream_options={"include_usage": True}).events
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events}) == 1
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", events[0]["id"])
    assert events[0]["object"] == "chat.completion.chunk"
    assert events[0]["model"] == "smollm2-135m-instruct"
    assert all(event.keys() >= COMMON for event in events)


def test_text_stream_has_no_role_and_no_delta(live: Live) -> None:
    stream = live.stream_of(TEXT, TEXT_BODY)
    assert {event["object"] for event in stream.events} == {"text_completion"}
    assert stream.events[0]["id"].startswith("cmpl-")
    assert stream.text == expected.text(live, 3)
    assert stream.deltas[-1] == ""
    assert stream.finish == "length"
    assert stream.done


def test_whole_chat_answer(live: Live) -> None:
    answer = live.chat("Hello", max_tokens=3).json()
    assert answer.keys() == COMMON | {"usage", "timings"}
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "message", "finish_reason", "logprobs"}
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)


def test_whole_text_answer(live: Live) -> None:
    answer = live.post(TEXT, TEXT_BODY).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": expected.text(live, 3), "finish_reason": "length", "logprobs": None}
    ]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_27_usage_comes_in_one_last_chunk_and_only_when_asked_for(live: Live, path: str, options: Any) -> None:
    """Servers send usage to clients that break on it, twice, or in a chunk with choices (case 27)."""
    body = message("Hello", max_tokens=3) if path == CHAT else TEXT_BODY
    events = live.stream_of(path, {**body, "stream_options": options}).events
    with_usage = [event for event in events if "usage" in event]
    if options == {"include_usage": True}:
        assert with_usage == events[-1:]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 3
    else:
        assert with_usage == []
        assert all(event["choices"] for event in events)


def test_streamed_and_whole_answers_agree(live: Live) -> None:
    """Text, usage and finish reason don't depend on how the answer is sent."""
    live.chat("Tell me", max_tokens=40)  # so that both find the same in the cache
    stream = live.stream("Tell me", max_tokens=40, stream_options={"include_usage": True})
    answer = live.chat("Tell me", max_tokens=40).json()
    assert stream.text == answer["choices"][0]["message"]["content"]
    assert stream.events[-1]["usage"] == answer["usage"]
    assert stream.finish == answer["choices"][0]["finish_reason"]


def test_usage_adds_up(live: Live) -> None:
    usage = live.post(TEXT, TEXT_BODY).json()["usage"]
    assert usage == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_timings_agree_with_usage_and_with_themselves(live: Live) -> None:
    answer = live.chat("Hello", max_tokens=20).json()
    timings, usage = answer["timings"], answer["usage"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"] == 20
    assert timings["ttft_ms"] == pytest.approx(timings["queue_ms"] + timings["prompt_ms"], abs=0.01)
    assert timings["prompt_per_second"] == pytest.approx(1000 * timings["prompt_n"] / timings["prompt_ms"], rel=0.01)
    # The first token comes out of prefill.
    assert timings["predicted_per_second"] == pytest.approx(1000 * 19 / timings["predicted_ms"], rel=0.01)


def test_the_chunk_that_ends_a_stream_has_timings(live: Live) -> None:
    events = live.stream("Hello", max_tokens=5).events
    assert ["timings" in event for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["timings"]["predicted_n"] == 5


def test_deltas_are_the_bytes_of_the_real_type(live: Live) -> None:
    """The bytes around a delta's text are encoded once per request; they must be what encoding each chunk gives."""
    import msgspec

    from forgelm.api.sse import event
    from forgelm.api.wire import ChatChunkChoice, Completion, Text, TextChoice

    for path, body in ((CHAT, message("Hi", max_tokens=3)), (TEXT, TEXT_BODY)):
        with live.http.stream("POST", path, json={**body, "stream": True}) as response:
            sent = response.read()
        stream = Stream(
            response, [msgspec.json.decode(line[6:]) for line in sent.split(b"\n\n") if line[:7] == b"data: {"]
        )
        for chunk in stream.events[1:-1]:
            identity = (chunk["id"], chunk["object"], chunk["created"], chunk["model"])
            (choice,) = chunk["choices"]
            typed = (
                TextChoice(0, choice["text"]) if path == TEXT else ChatChunkChoice(0, Text(choice["delta"]["content"]))
            )
            assert event(Completion(*identity, [typed])) in sent


def test_text_that_json_must_escape(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta's text is spliced between ready-made bytes: quotes, control characters and the splice's own marker
    must come through."""
    nasty = 'a"b\\c\n\x00text\x00</script>\u2028'
    monkeypatch.setattr(live.text.vocabulary, "pieces", {t: nasty.encode() for t in expected.tokens(3)})
    assert live.stream_of(TEXT, TEXT_BODY).text == 3 * nasty
    assert live.post(TEXT, TEXT_BODY).json()["choices"][0]["text"] == 3 * nasty


def test_models(live: Live) -> None:
    (model,) = live.http.get("/v1/models").json()["data"]
    assert model["id"] == "smollm2-135m-instruct"
    assert (model["object"], model["owned_by"]) == ("model", "forgelm")
    assert model["context_length"] == model["max_model_len"] == 8192
    assert live.http.get(f"/v1/models/{model['id']}").json() == model
    assert live.http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
