"""The starter model behind the real server: what depends on a model's own tokens."""

import time
from typing import Any

import pytest

from tests.processes.serving import Served, until

pytestmark = [pytest.mark.server, pytest.mark.model]


def whole(server: Served, content: str, **fields: Any) -> dict[str, Any]:
    answer = server.chat(content, **{"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def text_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def streamed(server: Served, content: str, **fields: Any) -> tuple[list[str], str]:
    """Deltas and finish reason."""
    with server.stream(content, **{"temperature": 0, **fields}) as events:
        choices = [event["choices"][0] for event in events if event.get("choices")]
    return [choice["delta"].get("content", "") for choice in choices], choices[-1]["finish_reason"]


@pytest.mark.parametrize("content", ["Write five emoji and 日本語 and é.", "Repeat after me: 👩‍💻🇨🇭 你好世界"])
def test_3_streamed_text_is_the_whole_text(real: Served, content: str) -> None:
    deltas, finish = streamed(real, content, max_tokens=40)
    body = whole(real, content, max_tokens=40)
    assert "".join(deltas) == text_of(body)
    assert finish == body["choices"][0]["finish_reason"]


def test_1_a_stop_string_across_tokens(real: Served) -> None:
    text = text_of(whole(real, "Count from one to ten in words.", max_tokens=30, ignore_eos=True))
    middle = len(text) // 2
    stop = text[middle : middle + 9]
    deltas, finish = streamed(real, "Count from one to ten in words.", max_tokens=30, stop=[stop], ignore_eos=True)
    assert "".join(deltas) == text[: text.index(stop)]
    assert finish == "stop"


def test_an_answer_ends_by_itself_unless_told_to_go_on(real: Served) -> None:
    body = whole(real, "Name the capital of France.", max_tokens=20)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert "<|im_end|>" not in text_of(body)
    longer = whole(real, "Name the capital of France.", max_tokens=20, ignore_eos=True)
    assert longer["usage"]["completion_tokens"] == 20
    assert longer["choices"][0]["finish_reason"] == "length"
    assert text_of(longer).startswith(text_of(body))


def test_39_the_same_seed_draws_the_same(real: Served) -> None:
    def draw(seed: int) -> str:
        return text_of(whole(real, "Tell me a story.", max_tokens=16, temperature=1.5, top_p=1.0, seed=seed))

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in (1, 2, 3)}) > 1


def test_39_greedy_is_greedy(real: Served) -> None:
    """Also with a seed, at a temperature too low to divide by, and with one candidate."""
    same: list[dict[str, Any]] = [{}, {"seed": 5}, {"temperature": 1e-42}, {"temperature": 1.5, "top_k": 1}]
    assert len({text_of(whole(real, "Tell me a story.", max_tokens=16, **fields)) for fields in same}) == 1


def test_30_after_a_client_left_the_next_one_starts_at_once(real: Served) -> None:
    with real.stream("Tell me a very long story.", max_tokens=2000, ignore_eos=True) as events:
        for _ in range(3):
            next(events)
    began = time.monotonic()
    assert whole(real, "Say hello.", max_tokens=1)["timings"]["queue_ms"] < 5000
    assert time.monotonic() - began < 20
    until(lambda: "requests_running 0.0" in real.http.get(f"{real.base}/metrics").text, "the engine is idle")


def test_28_one_very_long_line(real: Served) -> None:
    answer = real.chat("a" * 300_000)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert whole(real, "Say hello.")["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2.0, "top_p": 1e-300, "min_p": 1.0, "presence_penalty": 2.0},
        {"temperature": 2.0, "top_k": 1_000_000, "presence_penalty": -2.0},
        {"temperature": 1e-4, "min_p": 0.0},
        {"seed": -(2**63)},
    ],
    ids=str,
)
def test_35_the_ends_of_ranges(real: Served, fields: dict[str, Any]) -> None:
    """Sampling itself at its extremes: no crash, no tokens from nowhere."""
    body = whole(real, "Say hello.", max_tokens=8, **fields)
    assert body["usage"]["completion_tokens"] >= 1


def test_control_tokens_in_text_and_odd_characters(real: Served) -> None:
    for content in ("<|im_end|><|im_start|>system", "\x00\x01\x7f", "\u202e\ufeff\ufffd", "🇨" * 50, " " * 500):
        assert whole(real, content, max_tokens=2)["usage"]["completion_tokens"] >= 1
