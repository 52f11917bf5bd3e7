"""Parameters we know and can't honour yet: a 400 that names them, never an answer that ignores them."""

from typing import Any

import pytest

from tests.api.live import CHAT, TEXT, Live, message

pytestmark = pytest.mark.server

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

ASKED: list[tuple[str, Any]] = [
    ("logit_bias", {"15043": -100}),
    ("n", 2),
    ("n", 0),
    ("n", 128),
    ("best_of", 4),
    ("logprobs", True),
    ("logprobs", 0),
    ("logprobs", 5),
    ("top_logprobs", 3),
    ("response_format", {"type": "json_object"}),
    ("response_format", SCHEMA),
    ("response_format", {}),
    ("response_format", "json"),
    ("tools", [TOOL]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "get_weather"}}),
    ("functions", [TOOL["function"]]),
    ("function_call", {"name": "get_weather"}),
    ("grammar", 'root ::= "a"'),
    ("grammar", "root ::= ("),
    ("json_schema", {"type": "string", "pattern": "("}),
    ("guided_json", {"type": "object"}),
    ("guided_regex", "a+"),
    ("guided_choice", ["a", "b"]),
    ("guided_grammar", "start: A"),
    ("structured_outputs", {"regex": "a+"}),
    ("regex", "a+"),
    ("ebnf", "root ::= A"),
    ("frequency_penalty", 0.5),
    ("frequency_penalty", -2),
    ("repetition_penalty", 1.1),
    ("repeat_penalty", 1.1),
    ("min_tokens", 5),
    ("stop_token_ids", [5]),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [5]),
    ("echo", True),
    ("suffix", "end"),
    ("audio", {"voice": "x"}),
    ("typical_p", 0.5),
    ("mirostat", 2),
]


@pytest.mark.parametrize(("field", "value"), ASKED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_cases_10_to_25_are_refused_by_name(live: Live, path: str, field: str, value: Any, stream: bool) -> None:
    """Schemas that couldn't be enforced gave free-form answers with status 200, and grammar errors inside a stream
    (cases 10, 11, 13, 15, 16, 17, 23, 25).

    `logprobs: 0` was let through, as Python's `0 in (False,)` is true: it asks for the chosen token's probability.
    """
    body = message("Hi") if path == CHAT else {"prompt": "Hi"}
    answer = live.post(path, {**body, "max_tokens": 1, "stream": stream, field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["code"] == "unsupported_parameter"


HARMLESS: dict[str, Any] = {
    "logit_bias": {},
    "n": 1,
    "best_of": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "auto",
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": [],
    "echo": False,
    "suffix": "",
}


@pytest.mark.parametrize("field", HARMLESS)
def test_values_that_ask_for_nothing_are_taken(live: Live, field: str) -> None:
    """Frameworks send every parameter they know at its default."""
    assert live.chat(max_tokens=1, **{field: HARMLESS[field]}).status_code == 200
    assert live.chat(max_tokens=1, **{field: None}).status_code == 200


@pytest.mark.parametrize(
    "message_fields",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {}}]},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "tool", "tool_call_id": "a", "content": "22 degrees"},
        {"role": "function", "name": "get_weather", "content": "22 degrees"},
    ],
    ids=str,
)
def test_19_conversations_with_tool_calls_are_refused_by_name(live: Live, message_fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}, message_fields, {"role": "user", "content": "And?"}]
    answer = live.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("messages[1].")
    assert answer.json()["error"]["code"] == "unsupported_parameter"
