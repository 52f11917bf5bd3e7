"""Parameters we know and can't honour: a 400 that names them, never an answer that ignores them."""

from typing import Any

import pytest

from tests.api.live import CHAT, TEXT, Live, message

pytestmark = pytest.mark.server

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}

ANYWHERE: list[tuple[str, Any]] = [
    ("functions", [TOOL["function"]]),
    ("function_call", {"name": "get_weather"}),
    ("function_call", "required"),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [5]),
    ("prompt_logprobs", 1),
    ("prompt_logprobs", True),
    ("use_beam_search", True),
    ("length_penalty", 0.5),
    ("regex", "a+"),
    ("ebnf", "root ::= A"),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("modalities", ["audio"]),
    ("web_search_options", {}),
    ("best_of", 4),
    ("best_of", 0),
]
IN_CHATS: list[tuple[str, Any]] = [("echo", True), ("suffix", "end")]
IN_TEXTS: list[tuple[str, Any]] = [
    ("tools", [TOOL]),
    ("tools", "get_weather"),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "get_weather"}}),
    ("top_logprobs", 3),
    ("top_logprobs", False),
]
REFUSED = [
    *[(path, *asked) for path in (CHAT, TEXT) for asked in ANYWHERE],
    *[(CHAT, *asked) for asked in IN_CHATS],
    *[(TEXT, *asked) for asked in IN_TEXTS],
]


def body_for(path: str) -> dict[str, Any]:
    """A good request of one token."""
    return {**(message("Hi") if path == CHAT else {"prompt": "Hi"}), "max_tokens": 1}


@pytest.mark.parametrize(("path", "field", "value"), REFUSED, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("stream", [False, True])
def test_what_cant_be_honoured_is_refused_by_name(live: Live, path: str, field: str, value: Any, stream: bool) -> None:
    """A field that asks for something else than what would come is never ignored, and the refusal has a status."""
    answer = live.post(path, {**body_for(path), "stream": stream, field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert answer.headers["content-type"] == "application/json"


HARMLESS: list[tuple[str, Any]] = [
    ("functions", []),
    ("function_call", "none"),
    ("function_call", "auto"),
    ("bad_words", []),
    ("allowed_token_ids", []),
    ("prompt_logprobs", 0),
    ("use_beam_search", False),
    ("length_penalty", 1),
    ("length_penalty", 1.0),
    ("modalities", ["text"]),
    ("best_of", 1),
    ("tools", []),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("top_logprobs", 0),
    ("echo", False),
    ("suffix", ""),
    ("response_format", {"type": "text"}),
    ("logit_bias", {}),
    ("logit_bias", []),
    ("n", 1),
    ("stop_token_ids", []),
    ("min_tokens", 0),
]


@pytest.mark.parametrize(("field", "value"), HARMLESS, ids=str)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_values_that_ask_for_nothing_are_taken(live: Live, path: str, field: str, value: Any) -> None:
    """Frameworks send every parameter they know at its default: the answer is the same as without."""
    plain = live.post(path, body_for(path)).json()
    assert live.post(path, {**body_for(path), field: value}).json()["choices"] == plain["choices"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_null_is_not_said(live: Live, path: str) -> None:
    fields = {field for _, field, _ in REFUSED} | {field for field, _ in HARMLESS} | {"logprobs", "stop", "seed"}
    plain = live.post(path, body_for(path)).json()
    assert live.post(path, {**body_for(path), **dict.fromkeys(fields)}).json()["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({"tool_calls": [{"id": "a", "type": "function", "function": {}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [{"id": "a"}]}, "tool_calls[0].function"),
        ({"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "x"}}]}, "tool_calls[0].type"),
        ({"tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}, "tool_calls[0].function.arguments"),
        ({"tool_calls": [{"function": {"name": "x", "arguments": "[]"}}]}, "tool_calls[0].function.arguments"),
        ({"function_call": {"arguments": "{}"}}, "function_call.name"),
    ],
    ids=str,
)
def test_19_calls_in_a_conversation_that_are_none(live: Live, call: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **call}, {"role": "user", "content": "And?"}]
    answer = live.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"messages[1].{param}")
