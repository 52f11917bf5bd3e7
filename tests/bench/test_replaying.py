"""Traces as loads: recorded from a real server, repeated on it, and recorded once more."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forgelm.bench.client import Endpoint
from forgelm.bench.driving import Timed, drive
from forgelm.bench.replaying import read_replay
from forgelm.bench.result import Row
from forgelm.bench.terms import Terms
from forgelm.errors import ConfigError
from tests.api.live import Live, message, running
from tests.bench.other import Other, other
from tests.bench.tapping import STREAM, tap

TERMS = Terms("other-1", tokens_per_word=1.0, overhead=3.0)
"""A word is a token, as that server counts."""


def replayed(url: str, path: Path, terms: Terms, speed: float = 50.0) -> Row:
    found = read_replay(path, terms, speed)
    return asyncio.run(drive(Endpoint(url), found.workload, Timed(found.times), terms=terms))


def sent(server: Other, since: int) -> list[dict[str, Any]]:
    """What was asked since, but for the warm-up."""
    return server.bodies[since + 1 :]


def words(body: dict[str, Any]) -> list[str]:
    text = body["prompt"] if "prompt" in body else " ".join(each["content"] for each in body["messages"])
    return str(text).split()


def shared(one: list[str], other: list[str]) -> int:
    """Words that both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


LONG = "The rules of the house are many, and each of them has a reason that nobody remembers any more. " * 12


def test_shapes_have_the_recorded_lengths_and_beginnings(tmp_path: Path) -> None:
    chats = [[("system", LONG), ("user", f"Question {number}, and some more words to it")] for number in range(3)]
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        for number, chat in enumerate(chats):
            messages = [{"role": role, "content": content} for role, content in chat]
            body = {"messages": messages, "max_tokens": 4 + number, "temperature": 0.7, **STREAM}
            proxy.post("/v1/chat/completions", body)
        proxy.post("/v1/completions", {"prompt": LONG + "end", "max_tokens": 2})
        proxy.wait(4)
        before = len(server.bodies)
        row = replayed(server.url, proxy.path, TERMS)
        # They are milliseconds apart, and may overtake each other on their connections.
        now = sorted(sent(server, before), key=lambda body: [4, 5, 6, 2].index(body["max_tokens"]))
        recorded = server.bodies[:before]
    assert (row.workload, row.load, row.requests, row.failed) == ("replay", "open", 4, 0)
    assert [body["stream"] for body in now] == [True, True, True, False]
    assert [body.get("temperature") for body in now] == [0.7, 0.7, 0.7, 0]
    for new, old in zip(now, recorded, strict=True):
        # What a template puts around a second message is an estimate.
        assert len(words(new)) == pytest.approx(len(words(old)), abs=7)
        assert not set(words(new)) & {"Question", "reason"}
    # The whole system prompt is what the three have in common, as it was.
    assert shared(words(now[0]), words(now[1])) >= len(LONG.split()) - 12
    assert shared(words(now[0]), words(now[2])) < len(words(now[0]))
    assert shared(words(now[0]), words(now[3])) == 0


def test_a_real_servers_cache_sees_the_same_load(starter_path: Path, tmp_path: Path) -> None:
    """Prompt, cached and output tokens of a conversation's replay are those that were recorded, about."""

    def converse(live: Live, port: int) -> None:
        messages = [{"role": "user", "content": LONG}]
        for turn in range(3):
            body = {"messages": messages, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
            answer = live.http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body).json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"What of {turn}? {LONG[:300]}"}]

    with running(starter_path) as live:
        url = f"http://127.0.0.1:{live.port}"
        with tap(url, tmp_path / "t.jsonl") as proxy:
            converse(live, proxy.port)
            proxy.wait(3)
        terms = asyncio.run(learned(url))
        # Slowly enough for each answer to be there when the next turn sends it back.
        row = replayed(url, proxy.path, terms, speed=0.1)
    recorded = proxy.read()[1]
    assert row.output_tokens == sum(each.output_tokens or 0 for each in recorded) == 36
    assert row.prompt_tokens == pytest.approx(sum(each.prompt_tokens or 0 for each in recorded), rel=0.05)
    assert row.cached_tokens == pytest.approx(sum(each.cached_tokens for each in recorded), rel=0.15)
    assert row.cached_tokens > row.prompt_tokens / 3


async def learned(url: str) -> Terms:
    from forgelm.bench.terms import learn

    return await learn(Endpoint(url))


def test_another_seed_makes_other_words_of_the_same_lengths(tmp_path: Path) -> None:
    """A second replay on the same server would find all of the first one in its cache."""
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        proxy.post("/v1/chat/completions", message(LONG, max_tokens=2))
        proxy.wait(1)
        workloads = [read_replay(proxy.path, TERMS, seed=seed).workload for seed in (1, 1, 2)]
    first, again, second = (words(next(each.session(0, TERMS)).body(TERMS)) for each in workloads)
    assert first == again
    assert (shared(first, second), len(first)) == (0, len(second))


def test_an_answer_of_this_time_is_sent_back(tmp_path: Path) -> None:
    with other() as server, tap(server.url, tmp_path / "t.jsonl") as proxy:
        answer = proxy.post("/v1/chat/completions", message("Hello", max_tokens=3)).json()["choices"][0]["message"]
        asked = [{"role": "user", "content": "Hello"}, answer, {"role": "user", "content": "And?"}]
        proxy.post("/v1/chat/completions", {"messages": asked, "max_tokens": 2})
        proxy.wait(2)
        before = len(server.bodies)
        replayed(server.url, proxy.path, TERMS, speed=0.2)
        second = sent(server, before)[1]
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "word0 word1 word2 "


def test_texts_are_sent_as_they_were(tmp_path: Path) -> None:
    body = message("Hello there", max_tokens=2, stop=["x"], user="me", model="another")
    with other() as server, tap(server.url, tmp_path / "t.jsonl", text=True) as proxy:
        proxy.post("/v1/chat/completions", body)
        proxy.wait(1)
        before = len(server.bodies)
        row = replayed(server.url, proxy.path, TERMS)
        assert sent(server, before) == [{**body, "model": "other-1"}]
    assert (row.requests, row.ttft, row.output_tokens) == (1, None, 2)
    assert row.e2e


def test_times_are_scaled_and_failures_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [{"trace": 1, "taken": "", "forgelm": "", "text": False}]
    part = {"role": "user", "chars": 40, "blocks": ["0123456789abcdef"]}
    for number, (at, status) in enumerate([(3.0, 200), (4.0, 429), (5.0, 200), (9.0, 200)]):
        lines.append({"number": number, "at": at, "route": "/chat/completions", "parts": [part], "stream": True,
                      "status": status, "output_tokens": 3, "form": number == 3})  # fmt: skip
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = read_replay(path, TERMS, speed=2.0)
    assert found.times == (0.0, 1.0, 3.0)
    assert [note.split(":")[0] for note in found.notes] == [
        "1 of 4 recorded requests had no answer and aren't repeated",
        "1 requests asked for a form or had tools",
        "of 3 requests the prompt's tokens weren't told",
    ]


def test_a_trace_without_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"trace":1,"taken":"","forgelm":"","text":false}\n')
    with pytest.raises(ConfigError, match="has no request that was answered"):
        read_replay(path, TERMS)
