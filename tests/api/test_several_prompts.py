"""Several prompts in one text completion: each is answered as if it were alone, and the choices lie side by side."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import expected
from tests.api.live import TEXT, Live, Stream, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

PROMPTS = [[5000, 6000, 7000], [5000], [8000, 9000]]


@pytest.fixture(scope="module")
def narrow(starter_path: Path) -> Iterator[Live]:
    """One request runs, three may wait."""
    with running(starter_path, fake={"slots": 1, "step": 0.01}, limits={"queue": 3}) as server:
        yield server


def ask(live: Live, prompt: Any, **fields: Any) -> Any:
    answer = live.post(TEXT, {"prompt": prompt, "max_tokens": 6, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(stream: Stream, choices: int) -> list[str]:
    """Each choice's text."""
    return [
        "".join(each["text"] for event in stream.events for each in event["choices"] if each["index"] == index)
        for index in range(choices)
    ]


def test_each_is_answered_as_if_it_were_alone(live: Live) -> None:
    answer = ask(live, PROMPTS)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in answer["choices"]] == [expected.text(live, 6, each) for each in PROMPTS]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (6, 18)
    assert (answer["timings"]["prompt_n"] + answer["timings"]["cache_n"], answer["timings"]["predicted_n"]) == (6, 18)


def test_texts_and_lists_of_ids_may_be_mixed(live: Live) -> None:
    ids = list(live.text.vocabulary.tokenize("Hello world", add_special=True, parse_special=True))
    first, second, third = (choice["text"] for choice in ask(live, ["Hello world", ids, "Good bye"])["choices"])
    assert first == second != third
    assert first == ask(live, "Hello world")["choices"][0]["text"]


def test_one_list_of_ids_in_a_list_is_one_prompt(live: Live) -> None:
    assert ask(live, PROMPTS[:1])["choices"] == ask(live, PROMPTS[0])["choices"]


def test_each_has_n_answers_in_a_row(live: Live) -> None:
    choices = ask(live, PROMPTS[:2], n=2, echo=True)["choices"]
    pieces = live.text.vocabulary.pieces
    begins = ["".join(pieces[token].decode() for token in prompt) for prompt in PROMPTS[:2] for _ in range(2)]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice, begin in zip(choices, begins, strict=True):
        assert choice["text"].startswith(begin)
        assert len(choice["text"]) > len(begin)


def test_streamed(live: Live) -> None:
    body = {"prompt": PROMPTS, "max_tokens": 6, "n": 2, "echo": True, "stream_options": {"include_usage": True}}
    whole = live.post(TEXT, body).json()
    stream = live.stream_of(TEXT, body)
    assert texts(stream, 6) == [choice["text"] for choice in whole["choices"]]
    ended = [each["index"] for event in stream.events for each in event["choices"] if each["finish_reason"]]
    assert sorted(ended) == list(range(6)), "each ends once"
    counts = stream.events[-1]["usage"]
    assert [counts[name] for name in ("prompt_tokens", "completion_tokens")] == [6, 36]
    assert stream.done


def test_a_stop_string_ends_its_own_answer_alone(live: Live) -> None:
    pieces = expected.pieces(live, 6, PROMPTS[2])
    stop = pieces[2]
    choices = ask(live, PROMPTS, stop=stop)["choices"]
    alone = [ask(live, prompt, stop=stop)["choices"][0] for prompt in PROMPTS]
    assert [(each["text"], each["finish_reason"]) for each in choices] == [
        (each["text"], each["finish_reason"]) for each in alone
    ]
    assert choices[2]["finish_reason"] == "stop"


def test_left_out_tokens_are_counted_of_all(live: Live) -> None:
    long = [5000] * 9000
    usages = [ask(live, prompt, truncate="head")["usage"] for prompt in (long, [long, [5000], long])]
    one, three = (usage["prompt_tokens_details"]["truncated_tokens"] for usage in usages)
    assert three == 2 * one > 0


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", ""], "prompt[1]"),
        ([[5000], []], "prompt[1]"),
        ([[5000], [5000, 49152]], "prompt[1][1]"),
        ([["a"]], "prompt[0][0]"),
        ([[5000], 5000], "prompt"),
        (["a", 5000], "prompt"),
        (["a", [5000] * 8192], "prompt[1]"),
        (["a"] * 65, "prompt"),
        ([[5000]] * 40, "prompt"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cant_be_served_is_named(live: Live, prompt: Any, param: str) -> None:
    answer = live.post(TEXT, {"prompt": prompt, "max_tokens": 2, "n": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_they_count_one_by_one_in_the_queue_and_leave_together(narrow: Live) -> None:
    """All or none of them are taken; more than the queue holds would be refused for ever, and so is a 400."""
    assert narrow.post(TEXT, {"prompt": [[5000]] * 4, "max_tokens": 1}).status_code == 400
    with Raw(narrow.port) as first:
        first.chat(stream=True, max_tokens=4000).read_until(b"data: ", 2)
        until(lambda: narrow.gauges() == (1, 0, 1), "one runs")
        with Raw(narrow.port).post({"prompt": PROMPTS[:2], "max_tokens": 4000}, TEXT):
            until(lambda: narrow.gauges() == (1, 2, 2), "two prompts of one request wait")
            assert narrow.post(TEXT, {"prompt": PROMPTS[:2], "max_tokens": 1}).status_code == 429
            assert narrow.gauges() == (1, 2, 2)
        until(lambda: narrow.gauges() == (1, 0, 1), "both have left")
    narrow.idle()
    narrow.lives()


def test_a_client_that_leaves_ends_all_of_them(narrow: Live) -> None:
    with Raw(narrow.port).post({"prompt": PROMPTS, "max_tokens": 4000, "stream": True}, TEXT) as raw:
        raw.read_until(b"data: ", 3)
        until(lambda: narrow.gauges() == (1, 2, 1), "one runs, two wait")
    narrow.idle()
    narrow.lives()
