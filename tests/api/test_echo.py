"""What comes before an answer and after it: the prompt's text again, and a suffix that the answer leads to."""

import json
from typing import Any

import pytest

from forgelm.errors import RequestError
from tests.api import expected
from tests.api.joined import joined
from tests.api.live import CHAT, TEXT, Live, message
from tests.api.side import Side

IDS = list(expected.PROMPT)


def spelled(live: Live, ids: list[int]) -> str:
    return live.text.vocabulary.pieces_of(ids).decode()


# --- echo --------------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("prompt", ["Hello world", ["Hello world"], " é🦀\n", "Hello"], ids=str)
def test_a_prompts_text_comes_first_as_it_was_sent(live: Live, prompt: Any) -> None:
    plain = live.post(TEXT, {"prompt": prompt, "max_tokens": 5}).json()
    answer = live.post(TEXT, {"prompt": prompt, "max_tokens": 5, "echo": True}).json()
    text = prompt if isinstance(prompt, str) else prompt[0]
    assert answer["choices"][0]["text"] == text + plain["choices"][0]["text"]
    assert answer["usage"] == plain["usage"] | {"prompt_tokens_details": answer["usage"]["prompt_tokens_details"]}


@pytest.mark.server
def test_marks_in_a_prompt_are_shown_as_they_were_sent(live: Live) -> None:
    """Special tokens have no text of their own; the client's has."""
    prompt = "<|im_start|>user\nHi<|im_end|>\n"
    answer = live.post(TEXT, {"prompt": prompt, "max_tokens": 2, "echo": True}).json()
    assert answer["choices"][0]["text"].startswith(prompt)


@pytest.mark.server
def test_token_ids_are_shown_as_their_text(live: Live) -> None:
    answer = live.post(TEXT, {"prompt": IDS, "max_tokens": 5, "echo": True}).json()
    assert answer["choices"][0]["text"] == spelled(live, IDS) + expected.text(live, 5)


@pytest.mark.server
def test_half_a_character_is_no_failure(live: Live) -> None:
    ids = list(live.text.vocabulary.tokenize("🦀", add_special=False, parse_special=False))[:-1]
    assert ids
    answer = live.post(TEXT, {"prompt": ids, "max_tokens": 1, "echo": True}).json()
    assert answer["choices"][0]["text"].startswith("\ufffd")


@pytest.mark.server
@pytest.mark.parametrize("n", [1, 3])
def test_streamed_it_is_the_first_thing(live: Live, n: int) -> None:
    fields = {"prompt": IDS, "max_tokens": 6, "echo": True, "n": n}
    whole = live.post(TEXT, fields).json()["choices"]
    stream = live.stream_of(TEXT, fields)
    assert stream.done
    assert [event["choices"][0]["text"] for event in stream.events[:n]] == [spelled(live, IDS)] * n
    assert [choice.content for choice in joined(stream.events, n)] == [choice["text"] for choice in whole]


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_looked_for_in_the_answer_alone(live: Live, stream: bool) -> None:
    """One in the prompt would end every answer before it begins."""
    text = expected.text(live, 12)
    prompt = spelled(live, IDS)
    fields: dict[str, Any] = {"prompt": IDS, "max_tokens": 12, "echo": True, "stop": [prompt, prompt[-1:] + text[:1]]}
    found = live.stream_of(TEXT, fields).text if stream else live.post(TEXT, fields).json()["choices"][0]["text"]
    assert found == prompt + text


@pytest.mark.server
def test_what_was_left_out_of_a_prompt_is_not_shown(live: Live) -> None:
    prompt = [5000] * 9000 + IDS
    fields = {"prompt": prompt, "max_tokens": 3, "echo": True, "truncate": "head"}
    answer = live.post(TEXT, fields).json()
    kept = answer["usage"]["prompt_tokens"]
    assert kept < 9003
    assert answer["choices"][0]["text"].startswith(spelled(live, prompt[-kept:]))


@pytest.mark.server
@pytest.mark.parametrize("fields", [{"echo": False}, {"echo": None}, {}], ids=str)
def test_nothing_comes_first_unless_asked_for(live: Live, fields: dict[str, Any]) -> None:
    answer = live.post(TEXT, {"prompt": IDS, "max_tokens": 4, **fields}).json()
    assert answer["choices"][0]["text"] == expected.text(live, 4)


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [0, 3])
def test_log_probabilities_of_a_prompt_are_not_computed(live: Live, logprobs: int, stream: bool) -> None:
    body = {"prompt": "Hi", "echo": True, "logprobs": logprobs, "stream": stream}
    answer = live.post(TEXT, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
    assert answer.json()["error"]["code"] == "unsupported_parameter"


# --- suffix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [("def f(x):\n    return ", "\n\nprint(f(1))\n"), ("", "end"), ("a", " "), ("<|im_end|>", "<|fim_middle|>é")],
)
def test_prefix_suffix_middle(qwen: Side, before: str, after: str) -> None:
    """The order that Qwen's models were trained on; marks in the texts are text."""
    prepared = qwen.text(before, suffix=after)
    assert qwen.prompt(prepared) == f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    tokens = memoryview(prepared.job.prompt).cast("i").tolist()
    fim = qwen.vocabulary.fim
    assert fim is not None
    assert [tokens.count(token) for token in fim] == [1, 1, 1]
    assert qwen.vocabulary.special("<|im_end|>") not in tokens


async def test_what_fills_the_middle_is_the_answer(qwen: Side) -> None:
    told = await qwen.answer(qwen.text("a = ", suffix=" + 1"), "41")
    assert told.whole["choices"][0]["text"] == told.stream.content == "41"


async def test_echo_and_suffix(qwen: Side) -> None:
    """The prompt's text is shown, and neither the marks nor the suffix."""
    told = await qwen.answer(qwen.text("a = ", suffix=" + 1", echo=True), "41")
    assert told.whole["choices"][0]["text"] == told.stream.content == "a = 41"


def test_no_suffix_is_a_plain_prompt(qwen: Side) -> None:
    plain = qwen.text("a = ").job.prompt
    assert qwen.text("a = ", suffix="").job.prompt == qwen.text("a = ", suffix=None).job.prompt == plain


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]], ids=str)
def test_a_suffix_goes_with_text(qwen: Side, prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        qwen.text(prompt, suffix="x")
    assert caught.value.param == "suffix"


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_cant_fill_in_says_so(live: Live, stream: bool) -> None:
    """The suffix was ignored, and the answer went on past it."""
    answer = live.post(TEXT, {"prompt": "a = ", "suffix": " + 1", "stream": stream})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")
    assert answer.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.server
@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}], ids=json.dumps)
def test_neither_is_for_chats(live: Live, fields: dict[str, Any]) -> None:
    answer = live.post(CHAT, {**message("Hi"), **fields})
    assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))
