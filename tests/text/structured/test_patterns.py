"""Patterns mean in Rust's dialect what they mean in ECMA's, by the word of Python's."""

import json
import re

import pytest

from forgelm.errors import InvalidRequest
from forgelm.text.structured import json_schema
from forgelm.text.structured.patterns import ecma
from tests.text.structured.walks import Walker


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("^a.c$", r"^a[^\n\r\x{2028}\x{2029}]c$"),
        (r"\d\D", "[0-9][^0-9]"),
        (r"[\w-]", "[[0-9A-Za-z_]-]"),
        ("[[a&&b]", r"[\[a\&\&b]"),
        ("a/b", r"a\/b"),
        (r"\u0041\x42\u{1F600}", r"\x{0041}\x{42}\x{1F600}"),
        ("a+?", "a+"),
        ("(?<year>a)(?P<m>b)", "(?:a)(?:b)"),
        ("}]", r"\}\]"),
        (r"\p{L}", r"\p{L}"),
        ("a{2}b{3,}c{4,5}", "a{2}b{3,}c{4,5}"),
    ],
)
def test_what_both_read_differently_is_written_for_rust(pattern: str, written: str) -> None:
    assert ecma(pattern, "p") == written


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[a", "a\\", "(?=a)", "(?!a)", "(?<=a)", "(?i)a", r"\b", r"\B", r"\1", r"\k", r"\A", r"\Z", "[]",
        "a{2,1}", "a{", "a{,3}", "a**", "a{2}{3}", "[a--b]", "a{5001}", "(a{100}){51}", "((a{20}){20}){20}", "(" * 60,
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^p: .*\(character \d+\)$"):
        ecma(pattern, "p")


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\s+$", r"^\S\s\S$", r"^[^\s]{2}$", r"^[\s\S]{3}$", "^.{4}$", r"^[^\d]\D$", "a|^b$", "^(a|b)(c|d)*$",
        r"^\.\*\?$",
    ],
)  # fmt: skip
def test_what_is_written_matches(walker: Walker, pattern: str) -> None:
    for seed in range(6):
        answer = walker.walk(json_schema({"type": "string", "pattern": pattern}, "p"), seed, seed * 2, hints=pattern)
        assert re.search(pattern, json.loads(answer)), answer
