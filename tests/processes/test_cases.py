"""Requests from public bug reports, each as its report has it, against the starter model behind a real server.

Numbers are those of the list of cases; what needs no model's own tokens is tried on a fake engine in `tests/api`.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.models import metadata, starter
from tests.processes.asking import ask, events, lives, one, refused, streamed, whole
from tests.processes.serving import Served

pytestmark = [pytest.mark.server, pytest.mark.model]

PARIS = "Name the capital of France."
CALL = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}


@pytest.mark.parametrize("stop", [[], [""], ["", ""], "", None, ["no", "such", "five", "words", "here"]], ids=str)
def test_2_stops_that_say_nothing(steady: Served, stop: Any) -> None:
    assert one(steady, PARIS, stop=stop, max_tokens=12).said == one(steady, PARIS, max_tokens=12).said


def test_6_no_tokens_at_all(real: Served) -> None:
    assert refused(real, max_tokens=0) == "max_tokens"
    assert refused(real, max_completion_tokens=0) == "max_completion_tokens"
    lives(real)


@pytest.mark.parametrize("count", [1, 2])
def test_7_one_token_and_two(real: Served, count: int) -> None:
    body = ask(real, PARIS, max_tokens=count)
    assert body["usage"]["completion_tokens"] == count
    assert body["choices"][0]["finish_reason"] == "length"
    assert streamed(real, PARIS, max_tokens=count)[0].content == body["choices"][0]["message"]["content"]


def test_9_the_newer_name_wins(real: Served) -> None:
    for fields in ({"max_tokens": None}, {"max_tokens": 3}, {"max_tokens": 20}):
        body = ask(real, max_completion_tokens=8, ignore_eos=True, **fields)
        assert body["usage"]["completion_tokens"] == 8


def test_10_a_token_that_is_banned(real: Served) -> None:
    """Keys of JSON are strings; as numbers alone they were ignored."""
    prompt: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    paris = metadata(starter(), "tokenizer.ggml.tokens").index("ĠParis")

    def complete(**fields: Any) -> str:
        answer = real.http.post(f"{real.base}/v1/completions", json={**prompt, **fields})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    assert complete().startswith(" Paris")
    banned: list[Any] = [{str(paris): -100}, [[paris, -100]], [[paris, False]]]
    for bias in banned:
        assert " Paris" not in complete(logit_bias=bias)
    assert complete(logit_bias={str(paris): 100}) == " Paris" * 4
    assert complete(logit_bias={}) == complete()


@pytest.mark.parametrize(
    "bias",
    [{"49152": 1}, {"-1": 1}, {"Paris": 1}, {"5": 101}, {"5": -100.5}, {"5": "1"}, {"5": None}, [[49152, 1]], [[5]], 5],
    ids=str,
)
def test_10_biases_that_mean_nothing(real: Served, bias: Any) -> None:
    assert refused(real, logit_bias=bias).startswith("logit_bias")


def test_11_two_greedy_choices(real: Served) -> None:
    body = ask(real, PARIS, n=2)
    first, second = (choice["message"]["content"] for choice in body["choices"])
    assert first == second
    assert "Paris" in first
    assert body["usage"]["completion_tokens"] == 2 * ask(real, PARIS)["usage"]["completion_tokens"]
    assert [choice.said for choice in streamed(real, PARIS, n=2)] == [choice.said for choice in whole(real, PARIS, n=2)]


def test_11_seeded_choices_differ_and_come_again(real: Served) -> None:
    fields: dict[str, Any] = {"n": 3, "seed": 11, "temperature": 1.5, "top_p": 1, "max_tokens": 12}
    drawn = [choice.content for choice in whole(real, "Tell me a story.", **fields)]
    assert len(set(drawn)) == 3
    assert [choice.content for choice in streamed(real, "Tell me a story.", **fields)] == drawn


def test_19_calls_without_content(real: Served) -> None:
    """Content that was null, and content that wasn't there."""

    def history(**message: Any) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "tool_calls": [CALL], **message},
            {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        ]

    forms: list[dict[str, Any]] = [{}, {"content": None}, {"content": ""}, {"content": []}]
    bodies = [ask(real, history(**form), max_tokens=3) for form in forms]
    assert len({body["usage"]["prompt_tokens"] for body in bodies}) == 1
    assert len({body["choices"][0]["message"]["content"] for body in bodies}) == 1


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_20_text_in_parts(real: Served, role: str) -> None:
    parts = [{"type": "text", "text": "The capital"}, {"type": "text", "text": " of France"}]

    def prompt(content: Any) -> tuple[Any, ...]:
        messages = [{"role": "user", "content": "Go on."}, {"role": role, "content": content}]
        body = ask(real, messages if role != "system" else messages[::-1], max_tokens=4)
        return body["usage"]["prompt_tokens"], body["choices"][0]["message"]["content"]

    assert prompt(parts) == prompt("The capital of France")


def test_20_a_last_message_of_the_assistant_is_gone_on_with(steady: Served) -> None:
    messages = [{"role": "user", "content": PARIS}, {"role": "assistant", "content": "The capital of France is"}]
    assert one(steady, messages, max_tokens=3).content.startswith(" Paris")
    answered = ask(steady, messages, max_tokens=3, continue_final_message=False)
    assert answered["usage"]["prompt_tokens"] > ask(steady, messages, max_tokens=3)["usage"]["prompt_tokens"]


def test_21_developer_first_and_system_late(steady: Served) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": PARIS},
    ]
    as_system = [{**messages[0], "role": "system"}, *messages[1:]]
    assert one(steady, messages, max_tokens=4).said == one(steady, as_system, max_tokens=4).said


def test_22_unknown_fields(steady: Served) -> None:
    message = {"role": "user", "content": PARIS, "cache_control": {"type": "ephemeral"}, "weight": 1}
    odd = one(steady, [message], store=True, metadata={"a": "b"}, service_tier="auto", x={"y": [None]}, max_tokens=8)
    assert odd.said == one(steady, PARIS, max_tokens=8).said


def test_27_usage_in_streams(real: Served) -> None:
    options: list[tuple[Any, bool]] = [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        (None, False),
    ]
    for given, wanted in options:
        found = events(real, PARIS, max_tokens=3, n=2, stream_options=given)
        counted = [event for event in found if event.get("usage")]
        assert counted == (found[-1:] if wanted else [])
        assert all(event["choices"] for event in found if event not in counted)
        for event in counted:
            assert event["choices"] == []
            assert event["usage"]["completion_tokens"] == 6


def test_34_empty_prompts(steady: Served) -> None:
    assert refused(steady, []) == "messages"
    assert one(steady, "", max_tokens=2).finish == "length"
    answer = steady.http.post(f"{steady.base}/v1/completions", json={"prompt": "", "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    lives(steady)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1e6),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", -1),
        ("top_p", 0),
        ("top_k", 1.5),
        ("min_p", 1.01),
        ("typical_p", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -1e308),
        ("repetition_penalty", 0),
        ("repeat_last_n", -2),
        ("dry_base", 0.5),
        ("xtc_probability", 2),
        ("mirostat", 3),
        ("n", 129),
        ("n", 0),
        ("top_logprobs", 21),
        ("seed", 0.5),
        ("min_tokens", -1),
        ("stop", [1]),
    ],
    ids=str,
)
def test_35_values_out_of_their_range(real: Served, field: str, value: Any) -> None:
    assert refused(real, **{field: value}).partition("[")[0] == field


def test_35_numbers_that_json_has_not(real: Served) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], "temperature": {number}}}'
        answer = real.http.post(f"{real.base}/v1/chat/completions", content=body.encode())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
    lives(real)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2, "repetition_penalty": 10, "repeat_last_n": -1, "frequency_penalty": 2},
        {"temperature": 2, "repetition_penalty": 0.01, "frequency_penalty": -2, "presence_penalty": -2},
        {"temperature": 1, "typical_p": 1e-9, "top_n_sigma": 1e-9, "min_p": 1},
        {"temperature": 2, "dry_multiplier": 100, "dry_base": 100, "dry_allowed_length": 0, "dry_penalty_last_n": -1},
        {"temperature": 2, "xtc_probability": 1, "xtc_threshold": 0},
        {"temperature": 2, "mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 1},
        {"temperature": 2, "mirostat": 1, "mirostat_tau": 100, "mirostat_eta": 0},
    ],
    ids=str,
)
def test_35_samplers_at_the_ends_of_their_ranges(real: Served, fields: dict[str, Any]) -> None:
    (choice,) = whole(real, "Say hello.", seed=1, max_tokens=6, logprobs=True, **fields)
    assert choice.logprobs
    assert all(-9999 <= entry["logprob"] <= 0 for entry in choice.logprobs)


def test_38_no_reasoning_of_a_model_that_does_not_think(real: Served) -> None:
    for fields in ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "high"}, {}):
        message = ask(real, PARIS, max_tokens=4, **fields)["choices"][0]["message"]
        assert "reasoning_content" not in message


def test_39_greedy_is_the_same_from_the_cache(real: Served) -> None:
    content = "Which town is the capital of Italy? One sentence, please."
    cold = ask(real, content, max_tokens=8)
    warm = ask(real, content, max_tokens=8)
    assert (
        warm["usage"]["prompt_tokens_details"]["cached_tokens"]
        > cold["usage"]["prompt_tokens_details"]["cached_tokens"]
    )
    assert warm["choices"] == cold["choices"]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(lambda _: ask(real, content, max_tokens=8)["choices"], range(4)))
    assert beside == [cold["choices"]] * 4
