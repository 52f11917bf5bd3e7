"""Case 35: every field of a request with values that are none of its own: a 400 that names it, whole or streamed."""

import json
from typing import Any

import pytest

from forgelm.api.requests import STRUCTURED, ChatRequest, CompletionRequest, Unsupported
from forgelm.errors import InvalidRequest, RequestError
from tests.api.live import CHAT, TEXT, Live, message
from tests.api.side import CONTEXT, Side

FLOATS: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 2.1, 1e6),
    "top_p": (0, -1, 1.01),
    "min_p": (-0.01, 1.01),
    "typical_p": (0, -0.5, 1.01),
    "top_n_sigma": (-1.1, 100.5),
    "presence_penalty": (-2.01, 2.01, 1e300),
    "frequency_penalty": (-2.01, 2.01, -1e300),
    "repetition_penalty": (0, -1, 1e-9, 10.5),
    "repeat_penalty": (0, -1.1, 11),
    "dry_multiplier": (-0.1, 100.5),
    "dry_base": (0.99, 100.5, 0),
    "xtc_probability": (-0.1, 1.1),
    "xtc_threshold": (-0.1, 1.1),
    "mirostat_tau": (-1, 100.5),
    "mirostat_eta": (-0.1, 1.1),
}
"""Numbers, and values out of their ranges."""
INTEGERS: dict[str, tuple[Any, ...]] = {
    "top_k": (-2, 1_000_001, 2**32),
    "repeat_last_n": (-2, 10_000_001),
    "dry_allowed_length": (-1, 10_001),
    "dry_penalty_last_n": (-2, 10_000_001),
    "mirostat": (-1, 3),
    "seed": (2**63, -(2**63) - 1),
    "max_tokens": (0, -1, 10_000_001, 2**63),
    "n_predict": (0, -2, 10_000_001),
    "min_tokens": (-1, 10_000_001),
    "n": (0, -1, 129, 2**31),
}
CHAT_INTEGERS: dict[str, tuple[Any, ...]] = {
    "max_completion_tokens": (0, -1, 10_000_001),
    "top_logprobs": (-1, 21),
    "thinking_token_budget": (-2, 10_000_001),
    "thinking_budget_tokens": (-2, 10_000_001),
}
TEXT_INTEGERS: dict[str, tuple[Any, ...]] = {"logprobs": (-1, 21)}
FLAGS = ("stream", "ignore_eos")
CHAT_FLAGS = ("logprobs", "parallel_tool_calls", "add_generation_prompt", "continue_final_message")
TEXT_FLAGS = ("echo",)
OTHERS: dict[str, tuple[Any, ...]] = {
    "model": (5, [], True),
    "stop": (5, {}, [5], [None], True),
    "stop_token_ids": (5, "5", [-1], [2**31], [49152], [1.5], ["5"], [True], [5] * 129),
    "stream_options": (True, "yes", [], {"include_usage": "yes"}, {"include_usage": 1}),
    "truncate": ("tail", True, 5, {}),
    "dry_sequence_breakers": ("\n", 5, [5], ["x"] * 65),
    "logit_bias": (5, "5", [5], {"5": "1"}),
    "best_of": ("1", 1.5),
    "speculation": (5, True, "on", [], {"drafter": "best"}, {"depth": 0}, {"depth": 64}, {"depth": "3"}, {"most": 1}),
}
CHAT_OTHERS: dict[str, tuple[Any, ...]] = {
    "messages": (None, "Hi", {}, [], [5]),
    "tools": ("x", {}, [5], ["x"]),
    "tool_choice": (5, True, [], "some", {}, {"type": "function"}),
    "chat_template_kwargs": ([], "x", True),
    "reasoning_effort": ("", "very", 5, True, "LOW"),
}
TEXT_OTHERS: dict[str, tuple[Any, ...]] = {
    "prompt": (None, 5, {}, [], [None], [1.5], ["a", 5], [[]], [["a"]], [[1], 2]),
    "suffix": (5, [], True),
}
STRUCTURED_OTHERS: dict[str, tuple[Any, ...]] = {
    "response_format": (5, "json", [], {}, {"type": "xml"}, {"type": "json_schema"}),
    "guided_json": (5, "{}", [], False),
    "guided_regex": (5, [], "", "("),
    "guided_choice": ("a", 5, [], [5], [""]),
    "guided_grammar": (5, {}, "", "start: ("),
    "structured_outputs": (5, [], {}, {"json": {}, "regex": "a"}, {"unknown": 1}),
    "grammar": (5, {}, "", "root ::= ("),
    "json_schema": (5, "{}", [], {"type": "strange"}),
}
NOT_NUMBERS = ("0.5", True, False, [], {}, [1], "")
NOT_INTEGERS = (*NOT_NUMBERS, 1.5)
NOT_FLAGS = ("yes", "true", 1, 0, [], {})


def wrong(
    *ranges: dict[str, tuple[Any, ...]], flags: tuple[str, ...], others: dict[str, tuple[Any, ...]]
) -> dict[str, list[Any]]:
    """Field → values that it doesn't take."""
    found: dict[str, list[Any]] = {}
    for numbers in ranges:
        for field, values in numbers.items():
            found[field] = [*values, *(NOT_NUMBERS if field in FLOATS else NOT_INTEGERS)]
    found |= {field: list(NOT_FLAGS) for field in flags}
    return found | {field: list(values) for field, values in (OTHERS | STRUCTURED_OTHERS | others).items()}


CHATS = wrong(FLOATS, INTEGERS, CHAT_INTEGERS, flags=FLAGS + CHAT_FLAGS, others=CHAT_OTHERS)
TEXTS = wrong(FLOATS, INTEGERS, TEXT_INTEGERS, flags=FLAGS + TEXT_FLAGS, others=TEXT_OTHERS)


def test_no_field_is_forgotten() -> None:
    # A dot in a name of llama-server's: see test_speculation.py.
    elsewhere = {*Unsupported.__annotations__, "speculative_n_max"}
    assert set(CHATS) == set(ChatRequest.__struct_fields__) - elsewhere - {"echo", "suffix"}
    assert set(TEXTS) == set(CompletionRequest.__struct_fields__) - elsewhere - {"tools", "tool_choice", "top_logprobs"}
    assert set(STRUCTURED_OTHERS) == set(STRUCTURED)


def refused(side: Side, path: str, body: dict[str, Any] | bytes) -> RequestError:
    prepare = side.preparer.chat if path == CHAT else side.preparer.completion
    with pytest.raises(RequestError) as caught:
        prepare(body if isinstance(body, bytes) else json.dumps(body).encode(), CONTEXT)
    return caught.value


def named(error: RequestError) -> str:
    """The field that an error names, without what is inside it."""
    return (error.param or "").replace("[", ".").partition(".")[0]


CASES = [*[(CHAT, field) for field in CHATS], *[(TEXT, field) for field in TEXTS]]


@pytest.mark.parametrize(("path", "field"), CASES)
def test_35_values_that_a_field_does_not_take(smollm: Side, path: str, field: str) -> None:
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    for value in (CHATS if path == CHAT else TEXTS)[field]:
        error = refused(smollm, path, good | {field: value})
        assert (named(error), error.status) == (field, 400), f"{value!r}: {error}"
        assert len(str(error)) < 500


def test_an_answer_cant_be_longer_at_least_than_at_most(smollm: Side) -> None:
    assert named(refused(smollm, CHAT, message("Hi") | {"max_completion_tokens": 4, "min_tokens": 5})) == "min_tokens"
    assert named(refused(smollm, TEXT, {"prompt": "Hi", "n_predict": 4, "min_tokens": 5})) == "min_tokens"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(("path", "field"), CASES)
def test_35_numbers_that_json_lacks(smollm: Side, path: str, field: str, value: str) -> None:
    """Python's json writes NaN unasked: the message says which field it is."""
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    good.pop(field, None)
    body = json.dumps(good | {"x": 1})[:-1] + f', "{field}": {value}}}'
    error = refused(smollm, path, body.encode())
    assert isinstance(error, InvalidRequest)
    assert named(error) == field


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_35_over_http_whole_or_streamed(live: Live, path: str, stream: bool) -> None:
    """No stream begins that can't go on: its status says so."""
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    for field, values in (CHATS if path == CHAT else TEXTS).items():
        for value in values[:1]:
            answer = live.post(path, good | {"stream": stream, field: value})
            assert answer.status_code == 400, (field, value)
            error = answer.json()["error"]
            assert error["param"].replace("[", ".").partition(".")[0] == field
            assert error["type"] == "invalid_request_error"


EDGES: list[dict[str, Any]] = [
    {"temperature": 2, "top_p": 1e-300, "min_p": 1, "typical_p": 1e-9, "top_k": 1_000_000, "top_n_sigma": 100},
    {"temperature": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "top_k": -1, "top_n_sigma": -1},
    {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 10, "repeat_last_n": 10_000_000},
    {"presence_penalty": -2, "frequency_penalty": -2, "repetition_penalty": 0.01, "repeat_last_n": -1},
    {"dry_multiplier": 100, "dry_base": 100, "dry_allowed_length": 10_000, "dry_penalty_last_n": 10_000_000},
    {"dry_multiplier": 0.1, "dry_base": 1, "dry_allowed_length": 0, "dry_penalty_last_n": -1},
    {"xtc_probability": 1, "xtc_threshold": 0, "mirostat": 2, "mirostat_tau": 100, "mirostat_eta": 1},
    {"xtc_probability": 0, "xtc_threshold": 1, "mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 0},
    {"seed": 2**63 - 1, "n": 1, "min_tokens": 0, "stop_token_ids": [0, 49151]},
    {"seed": -(2**63), "min_tokens": 1, "n_predict": -1, "stop_token_ids": [5] * 128},
    {"dry_multiplier": 1, "dry_sequence_breakers": ["x"] * 64, "logit_bias": {"0": -100, "49151": 100}},
]


@pytest.mark.server
@pytest.mark.parametrize("fields", EDGES, ids=lambda fields: str(fields)[:40])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_35_the_ends_of_ranges_are_served(live: Live, path: str, fields: dict[str, Any]) -> None:
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    answer = live.post(path, good | {"max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text
