"""Parameters that are served: each is honoured, in both routes, plain and streamed."""

from typing import Any

import pytest

from forgelm.ipc.messages import Generate
from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message

pytestmark = pytest.mark.server

PROMPT = list(expected.PROMPT)


def complete(live: Live, **fields: Any) -> dict[str, Any]:
    """A text completion's JSON for the known prompt."""
    answer = live.post(TEXT, {"prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def sent(live: Live, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]) -> Generate:
    """What the engine is asked for a request."""
    seen: list[Generate] = []
    send = live.supervisor.send

    def spy(message: Any) -> None:
        if isinstance(message, Generate):
            seen.append(message)
        send(message)

    monkeypatch.setattr(live.supervisor, "send", spy)
    answer = live.post(path, body)
    assert answer.status_code == 200, answer.text
    (generate,) = seen
    return generate


# --- length ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_7_max_tokens_is_exact(live: Live, path: str, count: int) -> None:
    body = message("Hi") if path == CHAT else {"prompt": PROMPT}
    stream = live.stream_of(path, {**body, "max_tokens": count, "stream_options": {"include_usage": True}})
    assert stream.events[-1]["usage"]["completion_tokens"] == count
    assert 1 <= sum(bool(delta) for delta in stream.deltas) <= count
    assert stream.finish == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_6_max_tokens_0_is_refused(live: Live, field: str, stream: bool) -> None:
    answer = live.chat(stream=stream, **{field: 0})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(("old", "new", "count"), [(9, 4, 4), (4, 9, 9), (None, 4, 4), (4, None, 4)])
def test_9_max_completion_tokens_wins(live: Live, old: int | None, new: int | None, count: int) -> None:
    answer = live.chat(max_tokens=old, max_completion_tokens=new).json()
    assert answer["usage"]["completion_tokens"] == count


def test_an_answer_ends_where_the_context_does(live: Live) -> None:
    prompt = [5000] * 8180
    answer = live.post(TEXT, {"prompt": prompt, "max_tokens": 500}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 8192


# --- stop strings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_1_a_stop_string_across_tokens_never_shows(live: Live, width: int, stream: bool) -> None:
    """Clients saw the beginning of a stop string that came in several tokens (case 1)."""
    pieces = expected.pieces(live, 20)
    stop = pieces[8][-1:] + "".join(pieces[9 : 8 + width - 1]) + pieces[8 + width - 1][:1]
    text = "".join(pieces)
    wanted = text[: text.index(stop)]
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 20, "stop": stop}
    if stream:
        result = live.stream_of(TEXT, fields)
        assert (result.text, result.finish) == (wanted, "stop")
    else:
        choice = live.post(TEXT, fields).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (wanted, "stop")


@pytest.mark.parametrize("stop", [[], [""], None, "", ["", ""], ["nowhere in it"], ["q#1", "q#2", "q#3", "q#4", "q#5"]])
def test_2_stops_that_never_match_change_nothing(live: Live, stop: Any) -> None:
    """An empty stop string ended answers at once, or made them endless (case 2)."""
    choice = complete(live, max_tokens=10, stop=stop)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text(live, 10), "length")


def test_the_first_of_several_stops_wins(live: Live) -> None:
    pieces = expected.pieces(live, 12)
    choice = complete(live, max_tokens=12, stop=[pieces[9], pieces[4], "nowhere"])["choices"][0]
    text = "".join(pieces)
    assert choice["text"] == text[: min(text.index(pieces[4]), text.index(pieces[9]))]
    assert choice["finish_reason"] == "stop"


def test_text_held_back_for_a_stop_comes_at_the_end(live: Live) -> None:
    text = expected.text(live, 5)
    stream = live.stream_of(TEXT, {"prompt": PROMPT, "max_tokens": 5, "stop": text[-3:] + "and more"})
    assert (stream.text, stream.finish) == (text, "length")


@pytest.mark.parametrize("stop", [["x"] * 17, "x" * 1025, ["ok", "x" * 5000], [1], {"a": 1}, 5, [None], [["a"]]])
def test_2_stops_that_cant_be_served_are_refused(live: Live, stop: Any) -> None:
    answer = live.chat(stop=stop, max_tokens=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition("[")[0] == "stop"


def test_a_stop_string_ends_the_work_and_counts_as_stop(live: Live) -> None:
    """Ended by its stop string, a request was counted as aborted: dashboards showed clients running away."""
    before = {reason: live.metric("forgelm_requests_total", reason=reason) for reason in ("stop", "abort")}
    complete(live, max_tokens=8000, stop=expected.pieces(live, 5)[4])
    live.idle()
    assert live.metric("forgelm_requests_total", reason="stop") == before["stop"] + 1
    assert live.metric("forgelm_requests_total", reason="abort") == before["abort"]


# --- end tokens --------------------------------------------------------------------------------------------------


def test_an_end_token_ends_the_answer_unseen(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.text.preparer, "_end_tokens", (expected.tokens(5)[4],))
    answer = complete(live, max_tokens=20)
    assert answer["choices"][0]["text"] == expected.text(live, 4)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 5


def test_ignore_eos_goes_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.text.preparer, "_end_tokens", (expected.tokens(5)[4],))
    answer = complete(live, max_tokens=9, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stop_tokens_of_the_requests_own(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end an answer unseen, as end tokens do, and whether those count or not."""
    token = expected.tokens(5)[4]
    for fields in ({}, {"ignore_eos": True}):
        choice = complete(live, max_tokens=20, stop_token_ids=[token, 7], **fields)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected.text(live, 4), "stop")
    ends = live.text.vocabulary.end_tokens()
    body = {"prompt": PROMPT, "max_tokens": 1, "stop_token_ids": [7, ends[0]]}
    assert sent(live, monkeypatch, TEXT, body).stop_tokens == (*ends, 7)


def test_nothing_ends_an_answer_before_its_least_tokens(live: Live) -> None:
    """Neither a stop token nor a stop string; the first of each behind them does."""
    tokens, pieces = expected.tokens(5), expected.pieces(live, 5)
    choice = complete(live, max_tokens=9, min_tokens=9, stop_token_ids=[tokens[2]])["choices"][0]
    assert choice["finish_reason"] == "length"
    choice = complete(live, max_tokens=5, min_tokens=3, stop=[pieces[1], pieces[4]])["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text(live, 4), "stop")


# --- text --------------------------------------------------------------------------------------------------------


class ByteByByte:
    """Pieces that spell `text`, one byte per token, whatever the tokens are."""

    def __init__(self, text: str) -> None:
        self._bytes = iter(text.encode())

    def __getitem__(self, token: int) -> bytes:
        return bytes([next(self._bytes)])


@pytest.mark.parametrize("stream", [False, True])
def test_3_characters_cut_between_tokens(live: Live, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Emoji and CJK came out as U+FFFD when a character's bytes lay in several tokens (case 3)."""
    text = "👩‍💻日本語🇨🇭é"
    monkeypatch.setattr(live.text.vocabulary, "pieces", ByteByByte(text))
    body = {"prompt": PROMPT, "max_tokens": len(text.encode())}
    if stream:
        assert live.stream_of(TEXT, body).text == text
    else:
        assert live.post(TEXT, body).json()["choices"][0]["text"] == text


# --- sampling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_sampling_reaches_the_engine(live: Live, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    asked = {"temperature": 0.7, "top_k": 9, "top_p": 0.5, "min_p": 0.1, "presence_penalty": 1.5, "seed": -3}
    body = {**(message("Hi") if path == CHAT else {"prompt": "Hi"}), "max_tokens": 1, **asked}
    sampling = sent(live, monkeypatch, path, body).sampling
    assert {name: getattr(sampling, name) for name in asked} == asked


def test_what_is_not_said_comes_from_the_profile(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    body = message("Hi", max_tokens=1, temperature=None, top_p=None, seed=None, top_k=-1)
    sampling = sent(live, monkeypatch, CHAT, body).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.2, 0.9, 0)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-40, 1e-300, -0.0])
def test_temperatures_next_to_nothing_are_greedy(
    live: Live, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Logits divided by 1e-40 overflow to infinity, and infinity minus itself is no number: the answer was the
    vocabulary's last token, over and over."""
    body = message("Hi", max_tokens=1, temperature=temperature)
    assert sent(live, monkeypatch, CHAT, body).sampling.temperature == 0.0


def test_unseeded_requests_draw_different_seeds(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    body = message("Hi", max_tokens=1)
    assert sent(live, monkeypatch, CHAT, body).sampling.seed != sent(live, monkeypatch, CHAT, body).sampling.seed


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "starter", None, ""])
def test_names_that_are_served(live: Live, name: str | None) -> None:
    answer = live.chat(model=name, max_tokens=1)
    assert answer.status_code == 200
    assert answer.json()["model"] == "smollm2-135m-instruct"


@pytest.mark.parametrize("name", ["gpt-4", "SmolLM2-135M-Instruct", "starter ", "x" * 100_000])
def test_45_names_that_are_not(live: Live, name: str) -> None:
    answer = live.chat(model=name, max_tokens=1)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "smollm2-135m-instruct" in error["message"]
    assert len(answer.content) < 400


# --- prompts -----------------------------------------------------------------------------------------------------


def test_a_prompt_is_text_a_list_of_one_or_token_ids(live: Live) -> None:
    ids = list(live.text.vocabulary.tokenize("Hello world", add_special=True, parse_special=True))
    answers = [live.post(TEXT, {"prompt": p, "max_tokens": 5}).json() for p in ("Hello world", ["Hello world"], ids)]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert {answer["usage"]["prompt_tokens"] for answer in answers} == {len(ids)}


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_20_text_parts_are_the_joined_string(live: Live, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """Content as a list of parts was dropped, or joined with line ends (case 20)."""
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]

    def prompt(content: Any) -> bytes:
        messages = [{"role": "user", "content": "hi"}, {"role": role, "content": content}]
        with monkeypatch.context() as patch:
            return sent(live, patch, CHAT, {"messages": messages, "max_tokens": 1}).prompt

    assert prompt(parts) == prompt("one two")


def test_21_developer_first_and_system_late(live: Live) -> None:
    """Qwen's template refuses a late system message, which servers turned into a 500 (case 21)."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "Speak French."},
        {"role": "user", "content": "Again"},
    ]
    assert live.post(CHAT, {"messages": messages, "max_tokens": 2}).status_code == 200


def test_22_unknown_fields_change_nothing(live: Live) -> None:
    plain = live.chat("Hi", max_tokens=5).json()
    odd = live.post(
        CHAT,
        {
            "messages": [{"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}, "id": 7}],
            "max_tokens": 5,
            "store": True,
            "user": "someone",
            "metadata": {"a": "b"},
            "parallel_tool_calls": True,
            "service_tier": "auto",
            "x": [1, {"y": None}],
        },
    ).json()
    assert odd["choices"] == plain["choices"]
    assert odd["usage"] == plain["usage"]
