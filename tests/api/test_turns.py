"""Chats of several turns with the starter model itself: each prompt goes on exactly where the last answer ended."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.live import CHAT, Live, running
from tests.api.raw import Raw
from tests.api.spy import Spy

pytestmark = [pytest.mark.server, pytest.mark.model]

QUESTIONS = [
    "Write a line of Python that sums a list.",
    "Now in Rust, with 日本語 😀 comments.",
    "And in C?",
    "Thanks!",
]


@pytest.fixture(scope="module")
def engine(starter_path: Path) -> Iterator[Live]:
    """The real engine, on one thread."""
    with running(starter_path, real=True) as server:
        yield server


@pytest.fixture
def real(engine: Live) -> Iterator[Live]:
    yield engine
    engine.idle()


class Conversation:
    """Asks one question after the other and sends back what it got."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spy = Spy(live, monkeypatch)
        self._live = live
        self.messages: list[dict[str, Any]] = []

    def ask(self, question: str, *, stream: bool = False, **fields: Any) -> str:
        """The answer, which is now the last message."""
        self.messages.append({"role": "user", "content": question})
        body = {"messages": self.messages, "max_tokens": 12, **fields}
        if stream:
            text = self._live.stream_of(CHAT, body).text
        else:
            answer = self._live.post(CHAT, body)
            assert answer.status_code == 200, answer.text
            text = answer.json()["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": text})
        return text

    def cached(self) -> int:
        """Prompt tokens of one more question that were in the engine's memory."""
        body = {"messages": [*self.messages, {"role": "user", "content": "And?"}], "max_tokens": 1}
        answer = self._live.post(CHAT, body).json()
        assert answer["timings"]["cache_n"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return int(answer["timings"]["cache_n"])


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"temperature": 2.0, "top_p": 1.0, "seed": 5}], ids=str)
def test_a_turn_begins_with_the_last_prompt_and_its_answer(
    real: Live, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Hot answers are odd text, which comes out as other tokens when it is tokenized anew."""
    conversation = Conversation(real, monkeypatch)
    computed: list[int] = []
    retokenized = 0
    for question in QUESTIONS:
        text = conversation.ask(question, **fields)
        prompt, drawn = conversation.spy.prompt, conversation.spy.drawn
        assert prompt[: len(computed)] == computed
        ended = drawn[-1] in real.text.vocabulary.end_tokens()
        said = drawn[:-1] if ended else drawn
        # Bytes that are no text can't come back as the tokens they were.
        computed = prompt + drawn if "\ufffd" not in text else prompt
        retokenized += real.text.vocabulary.tokenize(text, add_special=False, parse_special=True).tolist() != said
    if "temperature" in fields:
        assert retokenized, "the answers would have come back the same in any case: this shows nothing"


def test_an_answer_that_ended_by_itself_matches_through_its_end(real: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation(real, monkeypatch)
    conversation.ask("Name the capital of France.", temperature=0, max_tokens=40)
    computed = conversation.spy.prompt + conversation.spy.drawn
    assert computed[-1] == real.text.vocabulary.eos
    conversation.ask("And of Spain?", max_tokens=1)
    assert conversation.spy.prompt[: len(computed)] == computed


def test_the_engine_has_all_of_it_in_memory(real: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation(real, monkeypatch)
    conversation.ask("Tell me a story about a fox and a dog.", temperature=1.9, top_p=1.0, seed=4, max_tokens=30)
    computed = len(conversation.spy.prompt) + len(conversation.spy.drawn)
    # The last token that was drawn has not been computed.
    assert conversation.cached() >= computed - 1


def test_an_answer_cut_by_a_stop_string(real: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation(real, monkeypatch)
    fields = {"temperature": 1.9, "top_p": 1.0, "seed": 4, "max_tokens": 30}
    whole = conversation.ask("Tell me a story about a fox and a dog.", **fields)
    prompt, drawn = conversation.spy.prompt, conversation.spy.drawn
    conversation.messages.clear()
    stop = whole[len(whole) // 2 :][:3]
    text = conversation.ask("Tell me a story about a fox and a dog.", stop=stop, **fields)
    assert text == whole[: whole.index(stop)]
    pieces = real.text.vocabulary.pieces
    uncut = 0
    while text.encode().startswith(b"".join(pieces[token] for token in drawn[: uncut + 1])):
        uncut += 1
    assert uncut > 3
    conversation.ask("Go on", max_tokens=1)
    assert conversation.spy.prompt[: len(prompt) + uncut] == prompt + drawn[:uncut]


def test_answers_whose_clients_left(real: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """They send back what they had got, which isn't all that they were sent."""
    conversation = Conversation(real, monkeypatch)
    question = "Tell me a long story."
    vocabulary = real.text.vocabulary
    retokenized = 0
    for seed in range(4):
        with Raw(real.port) as raw:
            raw.chat(question, stream=True, max_tokens=500, temperature=2.0, top_p=1.0, seed=seed, ignore_eos=True)
            raw.read_until(b"\n\n", 25)
            got = raw.stream_text()
        real.idle()
        if "\ufffd" in got:
            continue
        prompt, drawn = conversation.spy.prompt, conversation.spy.drawn
        texts = [b"".join(vocabulary.pieces[token] for token in drawn[:count]) for count in range(len(drawn) + 1)]
        count = texts.index(got.encode())
        assert count > 5
        conversation.messages = [{"role": "user", "content": question}, {"role": "assistant", "content": got}]
        conversation.ask("Go on", max_tokens=1)
        assert conversation.spy.prompt[: len(prompt) + count] == prompt + drawn[:count]
        retokenized += vocabulary.tokenize(got, add_special=False, parse_special=True).tolist() != drawn[:count]
    assert retokenized, "the answers would have come back the same in any case: this shows nothing"
