"""`truncate`: prompts that are too long are shortened when a client asks for it, and it is told by how much."""

from typing import Any

import pytest

from forgelm.api.prompts import answer_room
from tests.api.live import CHAT, TEXT, Live
from tests.api.spy import Spy
from tests.api.test_bad_input import refused

pytestmark = pytest.mark.server

CONTEXT = 8192
SYSTEM = {"role": "system", "content": "You are a pirate."}


@pytest.fixture
def spy(live: Live, monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(live, monkeypatch)


def long_chat(turns: int = 100, words: int = 100) -> list[dict[str, Any]]:
    """Turns of about `words` tokens each, numbered, with a question at the end."""
    messages = [SYSTEM]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"q{turn}. " + "word " * (words // 2)})
        messages.append({"role": "assistant", "content": f"a{turn}. " + "word " * (words // 2)})
    return [*messages, {"role": "user", "content": "last question"}]


def ask(live: Live, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = live.post(CHAT, {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def text_of(live: Live, spy: Spy) -> str:
    return "".join(live.text.vocabulary.text_of(token) for token in spy.prompt)


def truncated(answer: dict[str, Any]) -> Any:
    return answer["usage"]["prompt_tokens_details"].get("truncated_tokens")


# --- never by default --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"truncate": None}], ids=str)
def test_a_long_prompt_is_refused_unless_told_otherwise(live: Live, fields: dict[str, Any]) -> None:
    for path, prompt in ((CHAT, {"messages": long_chat()}), (TEXT, {"prompt": [5000] * 9000})):
        assert refused(live.post(path, {**prompt, **fields}))["code"] == "context_length_exceeded"


@pytest.mark.parametrize("value", ["", "tail", "HEAD", "auto", "none", "disabled", 1, True, False, ["head"], {}])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_other_words_are_refused(live: Live, path: str, value: Any) -> None:
    body = {"messages": long_chat(1)} if path == CHAT else {"prompt": "Hi"}
    assert refused(live.post(path, {**body, "max_tokens": 1, "truncate": value}))["param"] == "truncate"


@pytest.mark.parametrize("policy", ["head", "middle"])
def test_what_fits_is_left_alone(live: Live, spy: Spy, policy: str) -> None:
    messages = long_chat(3)
    plain = ask(live, messages, max_tokens=2)
    assert truncated(plain) is None
    prompt = spy.prompt
    assert truncated(ask(live, messages, max_tokens=2, truncate=policy)) == 0
    assert spy.prompt == prompt


# --- chats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "first"), [("head", False), ("middle", True)])
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 500}, {"max_completion_tokens": 4000}], ids=str)
def test_whole_turns_go_until_it_fits(live: Live, spy: Spy, policy: str, first: bool, asked: dict[str, int]) -> None:
    messages = long_chat()
    answer = ask(live, messages, truncate=policy, **asked, stop=" ")
    text = text_of(live, spy)
    room = CONTEXT - next(iter(asked.values()), CONTEXT // 4)
    assert len(spy.prompt) == answer["usage"]["prompt_tokens"]
    assert room - 250 < len(spy.prompt) <= room, "one more turn would not have fitted"
    assert text.startswith("<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nq")
    assert text.endswith("<|im_start|>user\nlast question<|im_end|>\n<|im_start|>assistant\n")
    assert ("q0. " in text) == ("a0. " in text) == first
    kept = [turn for turn in range(100) if f"q{turn}. " in text]
    assert kept == [turn for turn in range(100) if f"a{turn}. " in text]
    newest = kept[1:] if first else kept
    assert newest == list(range(100 - len(newest), 100))
    roles = [part.partition("\n")[0] for part in text.split("<|im_start|>")[1:]]
    assert roles == ["system", *(["user", "assistant"] * (len(kept) + 1))]


def test_the_client_is_told_how_much(live: Live, spy: Spy) -> None:
    messages = long_chat(80, words=80)
    whole = ask(live, messages, max_tokens=1)["usage"]["prompt_tokens"]
    answer = ask(live, messages, max_tokens=1200, truncate="head")
    assert truncated(answer) == whole - answer["usage"]["prompt_tokens"] > 0
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 1200


def test_a_stream_tells_it_too(live: Live) -> None:
    body = {"messages": long_chat(), "max_tokens": 3, "truncate": "head", "stream_options": {"include_usage": True}}
    stream = live.stream_of(CHAT, body)
    assert truncated(stream.events[-1]) > 0
    assert stream.finish == "length"


def test_boundaries_are_those_of_what_is_left(live: Live, spy: Spy) -> None:
    ask(live, long_chat(), max_tokens=100, truncate="head")
    names = {live.text.vocabulary.text_of(spy.prompt[boundary]) for boundary in spy.last.boundaries}
    assert names == {"<|im_start|>"}
    assert (
        spy.prompt[spy.last.boundaries[-1] :]
        == live.text.vocabulary.tokenize("<|im_start|>assistant\n", add_special=False, parse_special=True).tolist()
    )


@pytest.mark.parametrize("policy", ["head", "middle"])
def test_what_can_not_go_is_refused_as_ever(live: Live, policy: str) -> None:
    """The system message and the last one stay, and they alone are too long."""
    messages = [SYSTEM, *long_chat(5)[1:-1], {"role": "user", "content": "word " * 9000}]
    error = refused(live.post(CHAT, {"messages": messages, "truncate": policy}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("policy", ["head", "middle"])
def test_less_room_for_the_answer_is_better_than_none(live: Live, spy: Spy, policy: str) -> None:
    """The last message alone leaves less than was asked for; it fits the context, so it is answered."""
    messages = [*long_chat(5)[:-1], {"role": "user", "content": "word " * 7500}]
    answer = ask(live, messages, truncate=policy, max_tokens=5000, stop=" ")
    assert truncated(answer) > 0
    assert ("q0. " in text_of(live, spy)) == (policy == "middle")
    assert spy.last.max_tokens == CONTEXT - len(spy.prompt)


def test_room_for_the_answer() -> None:
    assert answer_room(None, 8192) == answer_room(0, 8192) == 2048
    assert answer_room(100, 8192) == 100
    assert answer_room(8191, 8192) == 8191
    assert answer_room(1_000_000, 8192) == 2048


# --- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("policy", ["head", "middle"])
def test_tokens_go_from_texts(live: Live, spy: Spy, policy: str, text: bool) -> None:
    written = " ".join(f"number {index}" for index in range(4000))
    ids = live.text.vocabulary.tokenize(written, add_special=True, parse_special=True).tolist()
    body = {"prompt": written if text else ids, "max_tokens": 192, "truncate": policy}
    answer = live.post(TEXT, body).json()
    assert spy.prompt == (ids[-8000:] if policy == "head" else ids[:4000] + ids[-4000:])
    assert truncated(answer) == len(ids) - 8000
    assert answer["usage"]["prompt_tokens"] == 8000


def test_a_bos_at_the_beginning_stays(live: Live, spy: Spy) -> None:
    bos = live.text.vocabulary.bos
    live.post(TEXT, {"prompt": [bos, *[5000] * 9000], "max_tokens": 192, "truncate": "head"})
    assert spy.prompt == [bos, *[5000] * 7999]


def test_a_short_text_stays_whole(live: Live, spy: Spy) -> None:
    answer = live.post(TEXT, {"prompt": [5000, 6000], "max_tokens": 2, "truncate": "middle"}).json()
    assert truncated(answer) == 0
    assert spy.prompt == [5000, 6000]
