"""Requests that can't be served: a 4xx in OpenAI's envelope that names the field, and the next request works.

Each test uses the `live` fixture, which sends a plain request afterwards and wants it answered.
"""

import json
from typing import Any

import pytest

from tests.api.live import CHAT, TEXT, Live, message
from tests.api.raw import Raw

pytestmark = pytest.mark.server


def refused(answer: Any, status: int = 400) -> dict[str, Any]:
    """The error object of a refused request, checked for its shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 500
    return error


def with_raw(field: str, value: str) -> bytes:
    """A good chat request with one field's value written as it is."""
    return json.dumps(message("Hi", max_tokens=1))[:-1].encode() + f', "{field}": {value}}}'.encode()


# --- JSON itself -------------------------------------------------------------------------------------------------

BROKEN = [
    b"",
    b"{",
    b"}",
    b"null",
    b"[]",
    b'"text"',
    b"0",
    b"{'messages': []}",
    b'{"messages": [],}',
    b'{"messages": []} trailing',
    b"\xef\xbb\xbf{}",
    b"\x00",
    b'{"messages": [{"role": "user", "content": "a\nb"}]}',
    b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\n{}\r\n--x--",
    json.dumps(message("x")).encode("utf-16"),
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:20]))
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_bodies_that_are_no_request(live: Live, path: str, body: bytes) -> None:
    assert refused(live.post(path, body))["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b'{"messages": ' + b"[" * 200_000, b'{"prompt": ' + b'{"a":' * 200_000])
def test_bodies_that_nest_without_end(live: Live, body: bytes) -> None:
    """Deep nesting overflowed the stack of a parser written in C, and the server with it."""
    refused(live.post(CHAT, body))
    refused(live.post(TEXT, body))


@pytest.mark.parametrize("depth", [100, 900, 5000, 200_000])
@pytest.mark.parametrize("field", ["tools", "response_format", "logit_bias"])
def test_refused_fields_that_nest_deep(live: Live, field: str, depth: int) -> None:
    refused(live.post(CHAT, with_raw(field, "[" * depth + "]" * depth)))


@pytest.mark.parametrize("depth", [900, 5000])
def test_ignored_fields_that_nest_deep(live: Live, depth: int) -> None:
    answer = live.post(CHAT, with_raw("anything", "[" * depth + "]" * depth))
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("text", ["你好", "日本語"])
def test_5_bytes_that_are_not_utf8(live: Live, text: str) -> None:
    """A GBK client crashed the server (case 5)."""
    body = json.dumps(message(text), ensure_ascii=False).encode("gbk")
    assert "UTF-8" in refused(live.post(CHAT, body))["message"]


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\ud83d", "\\ud800\\ud800", "a\\udc00b"])
@pytest.mark.parametrize("where", ["content", "stop", "model", "key"])
def test_lone_surrogates(live: Live, escape: str, where: str) -> None:
    """Half an emoji, cut by a client that counts UTF-16 units, is no text: no tokenizer takes it."""
    bodies = {
        "content": f'{{"messages": [{{"role": "user", "content": "{escape}"}}]}}',
        "stop": f'{{"messages": [{{"role": "user", "content": "x"}}], "stop": ["a", "{escape}"]}}',
        "model": f'{{"messages": [{{"role": "user", "content": "x"}}], "model": "{escape}"}}',
        "key": f'{{"messages": [{{"role": "user", "content": "x"}}], "x": {{"{escape}": NaN}}}}',
    }
    params = {"content": "messages[0].content", "stop": "stop[1]", "model": "model"}
    error = refused(live.post(CHAT, bodies[where].encode()))
    assert where == "key" or error["param"] == params[where]


def test_a_pair_of_surrogates_is_a_character(live: Live) -> None:
    assert (
        live.post(CHAT, b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}],"max_tokens":1}').status_code == 200
    )


# --- numbers -----------------------------------------------------------------------------------------------------

FLOATS = ("temperature", "top_p", "min_p", "presence_penalty")
INTEGERS = ("max_tokens", "max_completion_tokens", "top_k", "seed")
OUT_OF_RANGE = [
    *[("temperature", value) for value in ("-0.1", "2.1", "1e6", "1e308", "-1e308")],
    *[("top_p", value) for value in ("0", "-1", "1.01", "1e6")],
    *[("min_p", value) for value in ("-0.01", "1.01")],
    *[("presence_penalty", value) for value in ("-2.01", "2.01", "1e300")],
    *[("max_tokens", value) for value in ("0", "-1", "10000001", "2147483648", "9223372036854775808", "1e30")],
    *[("max_completion_tokens", value) for value in ("0", "-1", "10000001")],
    *[("top_k", value) for value in ("-2", "1000001", "4294967296")],
    *[("seed", value) for value in ("9223372036854775808", "-9223372036854775809", "1" * 40, "1" * 5000)],
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE, ids=lambda value: str(value)[:22])
def test_35_numbers_out_of_range(live: Live, field: str, value: str) -> None:
    """Extreme sampling values crashed or wedged servers (case 35)."""
    assert refused(live.post(CHAT, with_raw(field, value)))["param"] == field


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", [*FLOATS, *INTEGERS, "frequency_penalty", "n"])
def test_35_numbers_that_json_lacks(live: Live, field: str, value: str) -> None:
    """Python's json writes NaN unasked: the message says which field it is."""
    assert refused(live.post(CHAT, with_raw(field, value)))["param"] == field


@pytest.mark.parametrize("value", ['"0.5"', "true", "[]", "{}", '""', "[1]"])
@pytest.mark.parametrize("field", [*FLOATS, *INTEGERS])
def test_35_other_things_for_numbers(live: Live, field: str, value: str) -> None:
    assert refused(live.post(CHAT, with_raw(field, value)))["param"] == field


@pytest.mark.parametrize("field", INTEGERS)
def test_fractions_for_integers(live: Live, field: str) -> None:
    assert refused(live.post(CHAT, with_raw(field, "1.5")))["param"] == field


EDGES = [
    {"temperature": 2.0, "top_p": 1e-300, "min_p": 1.0, "top_k": 1_000_000, "presence_penalty": 2.0},
    {"temperature": 1e-300, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "presence_penalty": -2.0},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"max_tokens": 10_000_000, "stop": "e"},
]


@pytest.mark.parametrize("fields", EDGES, ids=str)
def test_the_ends_of_ranges_are_served(live: Live, fields: dict[str, Any]) -> None:
    assert live.chat(**{"max_tokens": 1, **fields}).status_code == 200


# --- other types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", True),
        ("stream_options.include_usage", {"include_usage": "yes"}),
        ("model", 5),
        ("messages", "Hello"),
        ("messages", {"role": "user"}),
        ("messages", None),
        ("ignore_eos", "no"),
        ("chat_template_kwargs", []),
        ("chat_template_kwargs.enable_thinking", {"enable_thinking": "false"}),
        ("chat_template_kwargs.messages", {"messages": []}),
    ],
)
def test_wrong_types_name_the_field(live: Live, field: str, value: Any) -> None:
    body = message("Hi", max_tokens=1) | {field.partition(".")[0]: value}
    assert refused(live.post(CHAT, body))["param"] == field


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([None], "messages[0]"),
        (["Hello"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "x" * 100_000, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": [{}]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_34_messages_that_cant_be_served(live: Live, messages: Any, param: str) -> None:
    assert refused(live.post(CHAT, {"messages": messages}))["param"] == param


def test_messages_without_end(live: Live) -> None:
    """190,000 of them fit the body's limit, and kept a thread busy for many minutes."""
    for role in ("user", "system"):
        messages = [{"role": role, "content": "x"}] * 190_000
        assert refused(live.post(CHAT, {"messages": messages}))["param"] == "messages"


def test_34_an_empty_message_is_answered(live: Live) -> None:
    """The template's frame around it is a prompt (case 34)."""
    assert live.chat("", max_tokens=2).json()["usage"]["completion_tokens"] == 2
    assert live.chat([], max_tokens=2).status_code == 200


def test_a_body_without_messages(live: Live) -> None:
    assert refused(live.post(CHAT, {"prompt": "x"}))["param"] == "messages"
    assert refused(live.post(TEXT, {"messages": []}))["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
        ([1, "b"], "prompt"),
        ([True], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([5, 49152], "prompt[1]"),
        ([5, 2**70], "prompt[1]"),
        ([10**4000], "prompt[0]"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_34_prompts_that_cant_be_served(live: Live, prompt: Any, param: str) -> None:
    assert refused(live.post(TEXT, {"prompt": prompt, "max_tokens": 1}))["param"] == param


# --- length ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_28_a_prompt_over_the_context(live: Live, stream: bool) -> None:
    """Long lines were cut silently, or refused in words that no client recognises (case 28)."""
    error = refused(live.chat("word " * 9000, stream=stream))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "8192" in error["message"]
    asked = live.text.vocabulary.tokenize("word " * 9000, add_special=False, parse_special=False)
    counts = [int(word) for word in error["message"].split() if word.isdigit()]
    assert max(counts) >= len(asked)


@pytest.mark.parametrize(("length", "status"), [(8191, 200), (8192, 400), (9000, 400)])
def test_28_a_prompt_needs_room_for_one_token(live: Live, length: int, status: int) -> None:
    answer = live.post(TEXT, {"prompt": [5000] * length, "max_tokens": 10})
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["usage"]["completion_tokens"] == 1
    else:
        error = refused(answer)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert f" {length} tokens" in error["message"]


# --- HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_wrong_methods(live: Live, path: str, method: str) -> None:
    answer = live.http.request(method, path)
    assert answer.status_code == 405
    if method != "HEAD":
        assert refused(answer, 405)["code"] == "method_not_allowed"


def test_posting_to_what_is_only_read(live: Live) -> None:
    refused(live.post("/v1/models", {}), 405)
    refused(live.post("/health", {}), 405)


@pytest.mark.parametrize(
    "path", ["/ui", "/v1", "/v1/audio/speech", "/v1/chat", "/v1/%ff%00", "/..%2f..%2fetc"]
)
def test_unknown_routes(live: Live, path: str) -> None:
    assert refused(live.http.get(path), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=gbk", "x"]
)
def test_content_types_dont_matter(live: Live, kind: str) -> None:
    """`curl -d` says it sends a form. The body is JSON, whatever it is called."""
    body = json.dumps(message("Hi", max_tokens=1)).encode()
    assert live.post(CHAT, body, headers={"Content-Type": kind}).status_code == 200


def test_a_body_over_the_limit_is_refused_before_it_is_sent(live: Live) -> None:
    with Raw(live.port) as raw:
        raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n".encode())
        status, body = raw.response()
    assert (status, body["error"]["code"]) == (413, "request_too_large")


def test_a_chunked_body_over_the_limit_is_refused(live: Live) -> None:
    """Without a length to look at, bytes are counted as they come."""
    with Raw(live.port) as raw:
        raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        for _ in range(9):
            raw.send(chunk)
        status, body = raw.response()
    assert (status, body["error"]["code"]) == (413, "request_too_large")


def test_a_body_just_under_the_limit_is_read(live: Live) -> None:
    body = json.dumps(message("Hi", max_tokens=1)).encode()
    assert live.post(CHAT, body + b" " * (8 * 1024 * 1024 - len(body))).status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000,
        b"\r\n\r\n\r\n",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_what_is_no_http(live: Live, request_bytes: bytes) -> None:
    with Raw(live.port) as raw:
        raw.send(request_bytes)
        raw.socket.settimeout(0.3)
        try:
            answer = raw.socket.recv(1000)
        except (TimeoutError, ConnectionError):
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5")


def test_a_request_in_pieces(live: Live) -> None:
    body = json.dumps(message("Hi", max_tokens=1)).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with Raw(live.port) as raw:
        for at in range(0, len(request), 7):
            raw.send(request[at : at + 7])
        assert raw.response()[0] == 200


def test_http_1_0_gets_its_answer_and_the_end(live: Live) -> None:
    body = json.dumps(message("Hi", max_tokens=2, stream=True)).encode()
    with Raw(live.port) as raw:
        raw.send(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        # uvicorn sends chunks even here, and proxies that speak 1.0 take them.
        assert b"data: [DONE]\n\n" in raw.read_all()


def test_errors_keep_the_connection(live: Live) -> None:
    """One connection takes a bad request and then a good one."""
    good, bad = json.dumps(message("Hi", max_tokens=1)), "{"
    with Raw(live.port) as raw:
        for body, status in ((bad, 400), (good, 200)):
            raw.received = b""
            raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert raw.response()[0] == status
