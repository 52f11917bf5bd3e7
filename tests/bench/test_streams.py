"""Stamped bytes in, answers out."""

import json

import pytest

from forgelm.bench.streams import Answer, Failed, Response, events, parse, reason_of

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(delta: dict[str, object], **fields: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}], **fields}).encode() + b"\n\n"


END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'
BODY = [
    chunk({"role": "assistant"}),
    chunk({"content": "a"}),
    chunk({"content": "\u2028 b"}),
    END,
    USAGE,
    b"data: [DONE]\n\n",
]


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def answer_of(data: bytes, size: int) -> Answer:
    """Cut into pieces of `size`, the n-th of which came at n."""
    return parse([(float(at), data[at : at + size]) for at in range(0, len(data), size)])


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_it_does_not_matter_where_the_network_cuts(size: int) -> None:
    answer = answer_of(HEAD + chunked(*BODY), size)
    assert (answer.text, answer.tokens, answer.prompt_tokens, answer.finish) == ("a\u2028 b", 3, 7, "stop")
    assert len(answer.arrivals) == 2


def test_a_piece_has_the_time_of_its_last_byte() -> None:
    first, second, rest = HEAD + chunked(BODY[0], BODY[1])[:-5], chunked(BODY[2])[:-5], chunked(*BODY[3:])
    answer = parse([(1.0, first[:-20]), (2.0, first[-20:]), (3.0, second), (4.0, rest)])
    assert (answer.arrivals, answer.ended) == ((2.0, 3.0), 4.0)


def test_events_may_have_comments_other_fields_and_several_lines() -> None:
    body = b": ping\n\nevent: x\ndata: one\nid: 1\n\ndata:two\r\ndata: lines\r\n\r\ndata: unfinished"
    assert events([(1.0, body[:30]), (2.0, body[30:])]) == [(2.0, b"one"), (2.0, b"two\nlines")]


def test_timings_count_where_there_is_no_usage() -> None:
    body = [chunk({"content": "a"}), END[:-3] + b', "timings": {"prompt_n": 5, "cache_n": 4, "predicted_n": 2}}\n\n']
    answer = answer_of(HEAD + chunked(*body), 99)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens, answer.counted) == (9, 4, 2, True)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"", "broken off", "the connection ended without an answer"),
        (HEAD + chunked(BODY[1]), "broken off", "the stream ended before its end"),
        (HEAD + chunked(b'data: {"error": {"message": "it broke"}}\n\n'), "error in the answer", "it broke"),
        (HEAD + chunked(b"data: nonsense\n\n"), "no completion", "JSON is malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "broken off", "the answer has no end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "broken off", "the answer is empty"),
        (b'HTTP/1.1 400 No\r\nContent-Length: 17\r\n\r\n{"detail": "why"}', "400", "why"),
        (b"HTTP/1.1 502 No\r\nContent-Length: 4\r\n\r\n<p>\n", "502", "<p>"),
        (b"220 mail.example\r\n", "no HTTP", ""),
    ],
)
def test_what_is_no_whole_answer_has_a_kind_and_a_reason(data: bytes, kind: str, reason: str) -> None:
    with pytest.raises(Failed) as failed:
        parse([(1.0, data)] if data else [])
    assert failed.value.kind == kind
    assert failed.value.reason.startswith(reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"error": "text"}', "text"),
        (b'{"message": "text"}', "text"),
        (b'{"detail": [{"msg": "x"}]}', "[{'msg': 'x'}]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_reasons_are_one_line_whoever_wrote_them(body: bytes, reason: str) -> None:
    assert reason_of(body) == reason


def test_a_continue_is_not_the_answer() -> None:
    response = Response()
    response.feed(1.0, b"HTTP/1.1 100 Continue\r\n\r\n")
    assert not response.complete
    response.feed(2.0, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (response.complete, response.status, response.body) == (True, 200, [(2.0, b"ok")])
