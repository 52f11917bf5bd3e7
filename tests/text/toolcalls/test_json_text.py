import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.toolcalls.json_text import read_json
from forgelm.text.toolcalls.source import Source
from tests.text.toolcalls.making import objects, values, writers

FOLLOWING = " and more"


def read(text: str, *, ended: bool = True) -> tuple[str, bool | None, str]:
    """What was given out, whether it was whole (None: more is awaited), and what is left."""
    source, parts = Source(), list[str]()
    source.add(text)
    source.ended = ended
    reading = read_json(source, parts.append)
    try:
        next(reading)
    except StopIteration as stop:
        return "".join(parts), stop.value, source.rest
    return "".join(parts), None, source.rest


@given(values, writers)
def test_json_goes_through_as_it_was_written(value: Any, dump: Callable[[Any], str]) -> None:
    text = dump(value)
    assert read(text + FOLLOWING) == (text, True, FOLLOWING)


@given(objects, writers, st.integers(0, 10_000))
def test_what_is_broken_off_is_closed_and_begins_with_what_was_sent(
    value: Any, dump: Callable[[Any], str], at: int
) -> None:
    text = dump(value)
    start = text[: at % len(text)]
    sent, whole, _ = read(start, ended=False)
    assert whole is None
    assert text.startswith(sent)
    closed, whole, rest = read(start)
    assert not whole
    assert closed.startswith(sent)
    assert not rest
    if sent:
        assert isinstance(json.loads(closed), dict)


@given(objects, writers)
def test_a_piece_never_waits_for_more_than_what_makes_it_json(value: Any, dump: Callable[[Any], str]) -> None:
    """Of a string that goes on, all is sent but an escape that may go on too."""
    text = dump({"key": "some text", **value})
    end = text.index("some text") + len("some")
    assert read(text[:end], ended=False)[0] == text[:end]


@pytest.mark.parametrize(
    ("text", "mended", "says"),
    [
        ('"a\nb\tc"', '"a\\nb\\tc"', "a\nb\tc"),
        (r'"\d+\s\."', r'"\\d+\\s\\."', r"\d+\s\."),
        (r'"it\'s"', '"it\'s"', "it's"),
        (r'"C:\users"', r'"C:\\users"', r"C:\users"),
        ('"\\ud83d\\ude42"', '"\\ud83d\\ude42"', "🙂"),
        ('"\\ud83d!"', '"\\ufffd!"', "�!"),
        ('"\\ude42\\n"', '"\\ufffd\\n"', "�\n"),
        ('"\\\n"', '"\\\\\\n"', "\\\n"),
    ],
)
def test_slips_in_strings_are_mended(text: str, mended: str, says: str) -> None:
    assert read(text) == (mended, True, "")
    assert json.loads(mended) == says


@pytest.mark.parametrize(
    ("text", "closed", "rest"),
    [
        ('{"a": 1, b}', '{"a": 1}', "b}"),
        ('{"a": 01}', "{}", "01}"),
        ('{"a": nothing}', "{}", "nothing}"),
        ('{"a" 1}', "{}", "1}"),
        ("{1: 2}", "{}", "1: 2}"),
        ("[1, 2,]", "[1, 2]", "]"),
        ("[1 2]", "[1]", "2]"),
        ("[1}", "[1]", "}"),
        ("{,}", "{}", ",}"),
        ("[,]", "[]", ",]"),
        ("words", "", "words"),
        ("}", "", "}"),
    ],
)
def test_what_is_no_json_ends_the_value(text: str, closed: str, rest: str) -> None:
    assert read(text) == (closed, False, rest)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": "x\\', '{"a": "x"}'),
        ('{"a": "x\\u00e', '{"a": "x"}'),
        ('{"a": "x\\ud83d', '{"a": "x\\ufffd"}'),
        ('{"a": 12', "{}"),
        ('{"a": [1, -', '{"a": [1]}'),
        ('{"a": [1], "b', '{"a": [1]}'),
        ('{"a": [1], "b": tru', '{"a": [1]}'),
        ('{"a": {"b": "c", ', '{"a": {"b": "c"}}'),
        ("[[[", "[[[]]]"),
    ],
)
def test_what_the_end_cuts_off_is_left_out(text: str, closed: str) -> None:
    assert read(text) == (closed, False, "")


def test_depth_costs_no_stack() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert read(text) == (text, True, "")
