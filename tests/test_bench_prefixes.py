"""The workloads of prompts that begin alike, against a server made of this file: what is sent, and what is counted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench import prefixes
from bench.load import Metrics
from bench.prefixes import PrefixSizes
from bench.rows import ROWS, TITLES
from bench.sse import Answer, AnswerError, Endpoint, complete
from bench.texts import Texts
from forgelm.llama.vocab import Vocabulary

SIZES = PrefixSizes(system=100, requests=6, at_once=2, short_answer=3, conversations=3, turns=4, opening=40, answer=5)


@dataclass
class FakeServer:
    """Answers chats, a word a token. A prompt's tokens are its words; every prompt is remembered, no answer is."""

    reads: int | None = None
    """Words of a former prompt that can be used again; None is all of them."""
    cut: int = 0
    """Tokens by which answers are shorter than asked for."""
    silent: bool = False
    """Send no text, as a model does that answers in control tokens."""
    prompts: list[list[str]] = field(default_factory=list)
    chats: list[list[dict[str, str]]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.splitlines() if line.startswith("Content-Length"))
        request = json.loads(await reader.readexactly(int(length.partition(":")[2])))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        self.chats.append(request["messages"])
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        # Others get their turn here, as they would while a real server computes.
        await asyncio.sleep(0)
        for event in self._events(request):
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.busy -= 1
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    def _events(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        words = " ".join(f"{message['role']}: {message['content']}" for message in request["messages"]).split()
        cached = max((common(words, known) for known in self.prompts), default=0)
        cached = min(cached, len(words) - 1, self.reads if self.reads is not None else len(words))
        self.prompts.append(words)
        tokens = request["max_tokens"] - self.cut
        answer = [] if self.silent else [f" word{len(self.prompts)}.{index}" for index in range(tokens)]
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        timings = {"cache_n": cached, "prompt_n": len(words) - cached}
        return [
            *({"choices": [{"delta": {"content": word}}]} for word in answer),
            {"choices": [], "usage": usage, "timings": timings},
        ]


def common(one: list[str], other: list[str]) -> int:
    """Words that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def against(server: FakeServer, work: Callable[[Endpoint], Awaitable[Any]]) -> Any:
    """What `work` returns, done to `server` over a real connection."""

    async def run() -> Any:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        async with listener:
            return await work(Endpoint(listener.sockets[0].getsockname()[1]))

    return asyncio.run(run())


def shared(server: FakeServer, sizes: PrefixSizes = SIZES) -> Metrics:
    figures: Metrics = against(server, lambda endpoint: prefixes.shared(endpoint, Texts(7), sizes))
    return figures


def turns(server: FakeServer, sizes: PrefixSizes = SIZES) -> Metrics:
    figures: Metrics = against(server, lambda endpoint: prefixes.turns(endpoint, Texts(7), sizes))
    return figures


# --- one system prompt ---


def test_shared_sends_one_system_prompt_to_all_and_so_many_at_a_time() -> None:
    server = FakeServer()
    figures = shared(server)
    assert len(server.chats) == SIZES.requests
    assert server.busiest == SIZES.at_once
    assert len({chat[0]["content"] for chat in server.chats}) == 1
    assert all([message["role"] for message in chat] == ["system", "user"] for chat in server.chats)
    assert figures["prompt_tokens"] == sum(map(len, server.prompts))
    assert figures["output_tok_s"] * figures["seconds"] == pytest.approx(SIZES.requests * SIZES.short_answer)


def test_shared_counts_what_was_reused_of_all_prompts_but_one() -> None:
    """A server that knows exactly the system prompt reuses it for all but the first."""
    system = len(f"system: {Texts(7).instructions(SIZES.system)}".split())
    server = FakeServer(reads=system)
    figures = shared(server)
    mean_prompt = figures["prompt_tokens"] / SIZES.requests
    assert figures["cached_tokens"] == system * (SIZES.requests - 1)
    assert figures["reused_share"] == pytest.approx(system / mean_prompt)
    assert shared(FakeServer(reads=0))["reused_share"] == 0.0


# --- conversations ---


def test_turns_send_back_the_answers_they_got() -> None:
    server = FakeServer()
    turns(server)
    assert server.busiest == SIZES.conversations
    last = [chat for chat in server.chats if len(chat) == 2 * SIZES.turns - 1]
    assert len(last) == SIZES.conversations
    for chat in last:
        assert [message["role"] for message in chat[:4]] == ["user", "assistant"] * 2
        assert chat[1]["content"].split()[0].startswith("word")
        assert len(chat[1]["content"].split()) == SIZES.answer
        assert chat[:3] in server.chats
    assert len({chat[0]["content"] for chat in last}) == SIZES.conversations


def test_turns_count_prompts_and_not_answers_as_reused() -> None:
    """This server knows each former prompt and no answer: nothing that was sent before is computed again."""
    figures = turns(FakeServer())
    assert figures["reused_share"] == 1.0
    assert 0 < turns(FakeServer(reads=20))["reused_share"] < 0.6
    assert turns(FakeServer(reads=0))["reused_share"] == 0.0


def test_a_cached_answer_does_not_make_up_for_a_prompt_computed_again() -> None:
    def answer(prompt: int, cached: int) -> Answer:
        return Answer(0.0, (1.0,), 1, prompt, "", cached, 1.0)

    assert prefixes.reused([answer(100, 0), answer(160, 150), answer(220, 40)]) == 100 + 40


# --- streams ---


def ask(server: FakeServer, tokens: int = 4) -> Answer:
    answer: Answer = against(server, lambda endpoint: complete(endpoint, [prefixes.said("user", "hello")], tokens))
    return answer


def test_an_answer_without_text_counts_with_its_end() -> None:
    """Random weights do this; their first token has no time of its own."""
    answer = ask(FakeServer(silent=True))
    assert (answer.text, answer.tokens, answer.arrivals) == ("", 4, ())
    assert answer.first == answer.ended - answer.sent > 0
    assert shared(FakeServer(silent=True))["without_text"] == SIZES.requests


def test_an_answer_that_ends_early_is_no_measurement() -> None:
    with pytest.raises(AnswerError, match="after 3 of 4 tokens"):
        ask(FakeServer(cut=1))


# --- texts ---


def test_texts_repeat_by_seed_and_differ_from_their_first_word_on() -> None:
    def some(seed: int) -> list[str]:
        texts = Texts(seed)
        return [texts.instructions(50), texts.question(), texts.report(50), texts.remark()]

    assert some(3) == some(3)
    starts = {Texts(seed).instructions(30).split()[0] for seed in range(200)}
    assert len(starts) == 200


def test_texts_are_as_long_as_they_should_be(starter_path: Path) -> None:
    """The comparison promises a system prompt of 350 to 400 tokens and another prompt of 2,000."""
    vocabulary = Vocabulary.open(starter_path)

    def size(text: str) -> int:
        return len(vocabulary.tokenize(text, add_special=False, parse_special=False))

    try:
        for seed in range(20):
            texts = Texts(seed)
            assert 350 <= size(texts.instructions(PrefixSizes().system)) <= 400
            assert 1900 <= size(texts.report(PrefixSizes().restart_prompt)) <= 2100
            assert 10 <= size(texts.question()) <= 20
            assert 18 <= size(texts.remark()) <= 40
    finally:
        vocabulary.close()


# --- rows ---


def test_every_row_has_its_figure() -> None:
    assert ROWS.keys() == TITLES.keys()
    for name, figures in (("shared", shared(FakeServer())), ("turns", turns(FakeServer()))):
        for scenario in (name, f"{name}-hybrid"):
            assert {row.metric for row in ROWS[scenario]} <= figures.keys()
