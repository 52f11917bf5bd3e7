"""The benchmarks' own arithmetic: statistics of pairs, and taking streams apart. No server, no clock."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

# `bench` is no part of the installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from bench import machine, stats
from bench.chunked import ChunkedDecoder, EventSplitter
from bench.load import Prompts
from bench.rows import Row, evaluate, table
from bench.sse import Answer, AnswerError, Endpoint, parse


def test_percentile_interpolates() -> None:
    assert stats.percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert stats.percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert stats.percentile([7.0], 99) == 7.0
    assert math.isnan(stats.percentile([], 50))


@pytest.mark.parametrize(("pairs", "depth"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6)])
def test_depths_lie_between_those_of_the_sign_test(pairs: int, depth: int) -> None:
    """The largest whole depths that still cover 95 %, as printed in tables of the sign test."""
    found = stats.interval_depth(pairs)
    assert found is not None
    assert depth <= found < depth + 1
    assert stats.interval_depth(5) is None


def test_interval_is_between_order_statistics() -> None:
    """Ten pairs: 97.9 % at depth 2, 89.1 % at depth 3; two thirds of the way for 95 %."""
    estimate = stats.location([float(i) for i in range(1, 11)])
    assert (estimate.low, estimate.median, estimate.high) == (
        pytest.approx(2.65, abs=0.02),
        5.5,
        pytest.approx(8.35, abs=0.02),
    )


def test_equal_sides_are_not_distinguishable() -> None:
    ours = [100, 103, 98, 101, 99, 102, 97, 100, 101, 99]
    theirs = [101, 100, 99, 100, 101, 99, 99, 101, 100, 98]
    estimate = stats.ratio_of_pairs(ours, theirs)
    assert not estimate.distinguishable_from(1.0)
    assert estimate.low is not None
    assert estimate.low <= estimate.median <= (estimate.high or 0)


def test_one_wild_pair_does_not_hide_an_effect() -> None:
    """A compiler started beside one measurement. The signed-rank interval became 0.37 … 1.11 here."""
    theirs = [100.0] * 10
    ours = [110.0, 111, 109, 112, 108, 110.5, 109.5, 111.5, 108.5, 12.0]
    estimate = stats.ratio_of_pairs(ours, theirs)
    assert estimate.median == pytest.approx(1.0975, rel=1e-4)
    assert estimate.distinguishable_from(1.0)


def test_too_few_pairs_give_no_interval() -> None:
    estimate = stats.ratio_of_pairs([2.0, 2.0], [1.0, 1.0])
    assert (estimate.median, estimate.low, estimate.high) == (pytest.approx(2.0), None, None)
    assert not estimate.distinguishable_from(1.0)


def test_values_that_are_no_figures_are_left_out() -> None:
    assert stats.ratio_of_pairs([1.0, 0.0, 4.0], [1.0, 1.0, 2.0]).pairs == 2
    assert stats.location([1.0, math.nan, 3.0]).median == 2.0
    assert math.isnan(stats.location([]).median)


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_interval_covers_the_truth_about_as_often_as_it_says(noise: str) -> None:
    """600 runs with a fixed seed. Nominal coverage is 95 %; 92 % would be more than three standard deviations below."""
    source = random.Random(7)

    def draw() -> float:
        wild = noise == "heavy" and source.random() < 0.2
        return source.gauss(0.0, 0.5 if wild else 0.05)

    covered = 0
    for _ in range(600):
        estimate = stats.ratio_of_pairs([1.2 * math.exp(draw()) for _ in range(10)], [1.0] * 10)
        covered += not estimate.distinguishable_from(1.2)
    assert covered / 600 > 0.92


# --- rows ---


def test_verdicts_say_what_is_certain() -> None:
    at_least = Row("x", "x", bar=0.97)
    theirs = [100.0] * 10
    assert evaluate(at_least, [110.0 + i for i in range(10)], theirs).verdict() == "met"
    assert evaluate(at_least, [80.0 + i for i in range(10)], theirs).verdict() == "MISSED"
    around = [95.0, 99, 96, 98, 97.5, 94, 101, 97, 98, 99]
    assert evaluate(at_least, around, theirs).verdict() == "met (bar inside the interval)"
    at_most = Row("x", "x", bar=0.1, at_least=False)
    assert evaluate(at_most, [5.0] * 10, theirs).verdict() == "met"
    assert evaluate(at_most, [5.0], [100.0]).verdict() == "met (no interval)"


def test_ratio_near_one_is_reported_as_noise() -> None:
    theirs = [100.0] * 10
    assert evaluate(Row("x", "x"), [99.0, 101] * 5, theirs).effect() == "not distinguishable"
    assert evaluate(Row("x", "x"), [120.0 + i for i in range(10)], theirs).effect() == "+24.5 %"


def test_differences_and_own_values_are_scaled() -> None:
    difference = evaluate(Row("x", "x", "difference", 20.0, False, "MB"), [110.0] * 6, [100.0] * 6)
    assert (difference.estimate.median, difference.verdict()) == (10.0, "met")
    own = evaluate(Row("x", "x", "ours", 3.0, False, "ms", 1e3), [0.004] * 6, [])
    assert (own.ours, own.verdict()) == (4.0, "MISSED")


def test_results_are_valid_json_and_a_table() -> None:
    """There is no peer here: its figure is NaN inside, and null in the JSON line."""
    result = evaluate(Row("title", "x", "ours"), [1.0, 2.0], [])
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["theirs"] is None
    assert len({len(line) for line in table([result, result]).splitlines()}) == 1


# --- streams ---

EVENTS: list[dict[str, Any]] = [
    {"choices": [{"text": "Hé"}]},
    {"choices": [{"text": ""}]},
    {"choices": [{"text": "llo"}]},
    {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 7}},
]


def body(events: list[dict[str, Any]], end: str = "\n\n") -> bytes:
    lines = [": ping", *("data: " + json.dumps(event, ensure_ascii=False) for event in events), "data: [DONE]"]
    return "".join(line + end for line in lines).encode()


def chunked(plain: bytes, size: int) -> bytes:
    chunks = [plain[i : i + size] for i in range(0, len(plain), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])


def response(payload: bytes, header: str = "Transfer-Encoding: chunked") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{header}\r\nContent-Type: text/event-stream\r\n\r\n".encode() + payload


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50, 10_000])
def test_any_split_gives_the_same_answer(cut: int) -> None:
    raw = response(chunked(body(EVENTS), 11))
    pieces = [(float(i), raw[i : i + cut]) for i in range(0, len(raw), cut)]
    answer = parse(-1.0, pieces)
    assert (answer.text, answer.tokens, answer.prompt_tokens) == ("Héllo", 3, 7)
    assert len(answer.arrivals) == 2


def test_bodies_without_chunking_and_with_crlf_are_read_too() -> None:
    answer = parse(0.0, [(1.0, response(body(EVENTS, "\r\n\r\n"), "Connection: close"))])
    assert (answer.text, answer.first) == ("Héllo", 1.0)


def test_chat_chunks_count_content_and_not_the_role() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "a"}}]},
    ]
    answer = parse(0.0, [(1.0, response(body(events), "Connection: close"))])
    assert (answer.text, answer.tokens) == ("a", 1)


def test_cached_tokens_are_what_both_counts_say() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 40}}

    def answer(timings: dict[str, int]) -> Answer:
        events = [*EVENTS[:3], {"choices": [], "usage": usage, "timings": timings}]
        return parse(0.0, [(1.0, response(body(events), "Connection: close"))])

    assert answer({"cache_n": 40, "prompt_n": 10}).cached_tokens == 40
    assert answer({}).cached_tokens == 40
    with pytest.raises(AnswerError, match="disagree"):
        answer({"cache_n": 39, "prompt_n": 11})
    with pytest.raises(AnswerError, match="disagree"):
        answer({"cache_n": 40, "prompt_n": 50})


def test_errors_are_raised_with_the_servers_words() -> None:
    with pytest.raises(AnswerError, match="queue is full"):
        parse(0.0, [(1.0, b'HTTP/1.1 429 Too Many\r\n\r\n{"error": "queue is full"}')])
    with pytest.raises(AnswerError, match="engine died"):
        parse(0.0, [(1.0, response(body([{"error": {"message": "engine died"}}]), "Connection: close"))])


def test_a_cut_stream_counts_what_arrived() -> None:
    whole = response(chunked(body(EVENTS), 4096))
    cut = whole[: whole.index(b"llo")]
    assert parse(0.0, [(1.0, cut)]).tokens == 1
    events = response(body(EVENTS[:3])[:-14], "Connection: close")
    assert parse(0.0, [(1.0, events)]).tokens == 2


def test_decoder_and_splitter_hold_back_what_is_incomplete() -> None:
    decoder, splitter = ChunkedDecoder(), EventSplitter()
    assert decoder.feed(b"5\r\nab") == b"ab"
    assert decoder.feed(b"cde\r") == b"cde"
    assert decoder.feed(b"\n0\r\n\r\n") == b""
    assert splitter.feed(b"data: a\n\ndata: b\n") == [b"a"]
    assert splitter.feed(b"data: c\n\n: ping\n\n") == [b"b\nc"]


def test_gap_that_spans_the_end_of_the_window_counts() -> None:
    """A stall that ends with the long prompt's first token ends microseconds after it: leaving it out hid it all."""
    answer = Answer(0.0, (1.0, 1.1, 5.0, 5.1), 4, 0, "", 0, 5.1)
    assert answer.gaps(1.05, 4.9) == pytest.approx([0.1, 3.9])
    assert len(answer.gaps()) == 3


def test_prompts_repeat_by_seed_and_share_no_start() -> None:
    first, again = Prompts(5), Prompts(5)
    texts = [first.take(20) for _ in range(50)]
    assert texts == [again.take(20) for _ in range(50)]
    assert len({text[:8] for text in texts}) == 50


def test_requests_carry_the_servers_own_fields() -> None:
    request = Endpoint(1, {"cache_prompt": False}, chat=True).request("hi", 3)
    head, _, payload = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1")
    fields = json.loads(payload)
    assert fields["messages"] == [{"role": "user", "content": "hi"}]
    assert (fields["cache_prompt"], fields["ignore_eos"], fields["max_tokens"]) == (False, True, 3)


def test_own_work_does_not_count_as_competition() -> None:
    meter = machine.Competition().begin()
    sum(range(200_000))
    assert meter.end() >= 0.0
    assert machine.cpu_seconds(2**22 + 1) == 0.0
