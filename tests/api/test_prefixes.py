"""What lets the engine reuse what it computed: boundaries, the tokens of answers, and what clients are told of it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm import log
from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message, running
from tests.api.raw import Raw
from tests.api.spy import Spy

pytestmark = pytest.mark.server

SYSTEM = {"role": "system", "content": "Be brief. " * 30}
LONG = [5000 + index % 300 for index in range(400)]
"""A prompt of token ids."""


@pytest.fixture
def spy(live: Live, monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(live, monkeypatch)


def cached(answer: dict[str, Any]) -> int:
    """What an answer says about memory, in both places."""
    count = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert answer["timings"]["cache_n"] == count
    assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"] - count
    return int(count)


# --- boundaries --------------------------------------------------------------------------------------------------


def test_the_engine_is_told_where_messages_end(live: Live, spy: Spy) -> None:
    live.post(CHAT, {"messages": [SYSTEM, {"role": "user", "content": "Hi"}], "max_tokens": 1})
    vocabulary = live.text.vocabulary
    starts = [index for index, token in enumerate(spy.prompt) if vocabulary.text_of(token) == "<|im_start|>"]
    assert list(spy.last.boundaries) == starts[1:]
    assert len(starts) == 3


@pytest.mark.parametrize("prompt", ["Hi", [5000, 6000], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"])
def test_texts_have_none(live: Live, spy: Spy, prompt: Any) -> None:
    live.post(TEXT, {"prompt": prompt, "max_tokens": 1})
    assert spy.last.boundaries == ()


@pytest.mark.parametrize("switch", ["prefix_cache", "checkpoints"])
def test_none_where_nothing_is_kept(starter_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    with running(starter_path, cache={switch: False}) as server:
        spy = Spy(server, monkeypatch)
        server.chat("Hi", max_tokens=1)
        assert spy.last.boundaries == ()


def test_a_prompt_that_will_be_rendered_anew_is_logged(
    qwen35_vocab_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3.5's: the first token that the next turn changes, and the boundary before it."""
    level = logging.getLogger().level
    log.configure("debug", json=True)
    try:
        with running(qwen35_vocab_path) as server:
            spy = Spy(server, monkeypatch)
            server.chat("Hi", max_tokens=1)
            names = [server.text.vocabulary.text_of(token) for token in spy.prompt]
    finally:
        log.configure(logging.getLevelName(level).lower(), json=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"api.prompts"' in line]
    (line,) = [line for line in lines if "re-renders" in line["event"]]
    assert (line["level"], line["token"], line["prompt_tokens"]) == ("debug", "<think>", len(names))
    assert names[line["first_differing"]] == "<think>"
    assert names[line["last_boundary"]] == "<|im_start|>"
    assert spy.last.boundaries[-1] == line["last_boundary"] < line["first_differing"]


# --- turns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_goes_on_where_the_answer_ended(live: Live, spy: Spy, stream: bool) -> None:
    """The fake's words come in no order that a tokenizer would give."""
    body = message("Tell me", max_tokens=50)
    if stream:
        text = live.stream_of(CHAT, body).text
    else:
        text = live.post(CHAT, body).json()["choices"][0]["message"]["content"]
    computed = spy.prompt + spy.drawn
    assert live.text.vocabulary.tokenize(text, add_special=False, parse_special=True).tolist() != spy.drawn
    turns = [*body["messages"], {"role": "assistant", "content": text}, {"role": "user", "content": "Go on"}]
    answer = live.post(CHAT, {"messages": turns, "max_tokens": 1}).json()
    assert spy.prompt[: len(computed)] == computed
    assert cached(answer) >= len(computed) - 1


def test_a_text_goes_on_where_its_answer_ended(live: Live, spy: Spy) -> None:
    first = live.post(TEXT, {"prompt": "Once upon a time", "max_tokens": 50}).json()
    computed = spy.prompt + spy.drawn
    live.post(TEXT, {"prompt": "Once upon a time" + first["choices"][0]["text"], "max_tokens": 1})
    assert spy.prompt == computed


def test_with_the_switch_off_every_prompt_is_tokenized(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(starter_path, cache={"prefix_cache": False}) as server:
        spy = Spy(server, monkeypatch)
        tokenize = server.text.vocabulary.tokenize
        text = server.post(TEXT, {"prompt": "Once upon a time", "max_tokens": 50}).json()["choices"][0]["text"]
        longer = "Once upon a time" + text
        assert cached(server.post(TEXT, {"prompt": longer, "max_tokens": 1}).json()) == 0
        assert spy.prompt == tokenize(longer, add_special=True, parse_special=True).tolist()
        turns = [SYSTEM, {"role": "user", "content": "Hi"}]
        for _ in range(2):
            answer = server.post(CHAT, {"messages": turns, "max_tokens": 50}).json()
            assert cached(answer) == 0
            said = answer["choices"][0]["message"]["content"]
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on"}]
        framed = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns[:-2])
        plain = tokenize(framed + "<|im_start|>assistant\n", add_special=True, parse_special=True)
        assert spy.prompt == plain.tolist()


# --- what clients are told -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(starter_path: Path) -> Iterator[Live]:
    """One whose memory only these tests fill."""
    with running(starter_path) as server:
        yield server


def test_cached_tokens_of_an_answer_that_a_stop_string_ended(fresh: Live) -> None:
    """The engine's last delta never comes for those: they said 0."""
    prompt = [1, *LONG]
    assert cached(fresh.post(TEXT, {"prompt": prompt, "max_tokens": 20}).json()) == 0
    before = fresh.metric("forgelm_cached_tokens_total")
    stop = "".join(expected.pieces(fresh, 6, prompt)[4:6])
    answer = fresh.post(TEXT, {"prompt": prompt, "max_tokens": 5000, "stop": stop}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert cached(answer) == len(prompt) - 1
    assert fresh.metric("forgelm_cached_tokens_total") == before + len(prompt) - 1


def test_cached_tokens_of_a_stream_that_a_stop_string_ended(fresh: Live) -> None:
    prompt = [2, *LONG]
    fresh.post(TEXT, {"prompt": prompt, "max_tokens": 20})
    body = {"prompt": prompt, "max_tokens": 5000, "stream_options": {"include_usage": True}}
    stream = fresh.stream_of(TEXT, {**body, "stop": "".join(expected.pieces(fresh, 6, prompt)[4:6])})
    assert stream.finish == "stop"
    assert cached(stream.events[-1]) == len(prompt) - 1


def test_cached_tokens_are_counted_for_clients_that_left(fresh: Live) -> None:
    prompt = [3, *LONG]
    fresh.post(TEXT, {"prompt": prompt, "max_tokens": 20})
    before = fresh.metric("forgelm_cached_tokens_total")
    with Raw(fresh.port) as raw:
        raw.post({"prompt": prompt, "max_tokens": 5000, "stream": True}, TEXT)
        raw.read_until(b"data: ", 5)
    fresh.idle()
    assert fresh.metric("forgelm_cached_tokens_total") == before + len(prompt) - 1
