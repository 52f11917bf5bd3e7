"""What of a tool's schema is enforced, and what is refused: strings written raw, and tools that aren't strict."""

import re
from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from forgelm.ipc.messages import Constraint
from forgelm.text.toolcalls.constraint import constraint
from forgelm.text.toolcalls.formats import choose_format
from forgelm.text.toolcalls.raw_strings import anchored
from forgelm.text.toolcalls.tools import Tool, ToolUse
from tests.text.toolcalls.following import Model


def hold(model: Model, schema: Any, *, strict: bool = True, name: str = "qwen35", count: int = 1) -> Constraint:
    """A forced call of a tool with the one parameter `text`."""
    parameters = {"type": "object", "properties": {"text": schema}, "required": ["text"], "additionalProperties": False}
    tools = tuple(Tool(f"look{index or ''}", "", parameters, strict) for index in range(count))
    return constraint(
        choose_format("", name),
        ToolUse(tools, "look"),
        thinking_open=False,
        marks=None,
        token_of=model.vocabulary.special,
    )


def call(text: str) -> str:
    return f"<tool_call>\n<function=look>\n<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"pattern": "^a"}, "ab\nc", "ba"),
        ({"pattern": "a$"}, "ba", "ab"),
        ({"pattern": "a|^b$"}, "xax", "bb"),
        ({"pattern": r"^\$[0-9]+\$$"}, "$12$", "12"),
        ({"pattern": r"^[|)]$"}, "|", "a"),
        ({"minLength": 2, "maxLength": 3}, "é🙂", "abcd"),
        ({"minLength": 1}, " ", ""),
        ({"maxLength": 0}, "", "a"),
        ({"minLength": 3, "pattern": "^a*$"}, "aaa", "aa"),
        ({"format": "date"}, "2024-02-29", "2023-02-29"),
        ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ({"format": "email"}, "ada.b+c@example.org", "ada@"),
        ({"format": "ipv4"}, "192.168.0.255", "192.168.0.256"),
    ],
)
def test_raw_strings_hold_to_their_bounds(starter: Model, bounds: Any, good: str, bad: str) -> None:
    held = hold(starter, {"type": "string", **bounds})
    assert starter.takes(held, call(good))
    assert not starter.takes(held, call(bad))


def test_a_bounded_string_never_holds_its_own_end(starter: Model) -> None:
    """Or the parser would end it there, and what follows would be no call."""
    held = hold(starter, {"type": "string", "minLength": 1})
    assert starter.takes(held, call("a\n</parameter>b"))
    for text in ("a\n</parameter>\nb", "a\n</parameter>", "</parameter>\nb"):
        assert not starter.takes(held, call(text))


def test_a_long_bound_holds(starter: Model) -> None:
    for most in (2_000, 8_192):
        assert starter.takes(hold(starter, {"type": "string", "maxLength": most}), call("word " * 400))
    assert not starter.takes(hold(starter, {"type": "string", "maxLength": 1_999}), call("word " * 400))


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "string", "pattern": "(?=a)b"}, ".pattern"),
        ({"type": "string", "pattern": "("}, ".pattern"),
        ({"type": "string", "maxLength": "ten"}, ".maxLength"),
        ({"type": "string", "maxLength": 8_193}, ".maxLength"),
        ({"type": "string", "format": "uri"}, ""),
        ({"type": "string", "allOf": [{"minLength": 1}, {"maxLength": 2}]}, ""),
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"type": "string", "contentEncoding": "base64"}, ".contentEncoding"),
    ],
)
def test_what_cannot_be_enforced_is_refused_of_strict_tools_alone(starter: Model, schema: Any, at: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        hold(starter, schema)
    assert refused.value.param == f"tools[0].function.parameters.properties.text{at}"
    loose = hold(starter, schema, strict=False)
    assert starter.takes(loose, call("[1, 1]" if schema["type"] == "array" else "anything"))


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "generic"])
def test_json_formats_refuse_the_same(starter: Model, name: str) -> None:
    schema = {"type": "array", "uniqueItems": True}
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        hold(starter, schema, name=name)
    assert hold(starter, schema, name=name, strict=False).grammar


def test_what_is_too_large_is_refused_before_the_engine_gets_it(starter: Model) -> None:
    parameters = {"type": "object", "properties": {f"parameter{index}": {"enum": list("abc")} for index in range(100)}}
    tools = tuple(Tool(f"look{index}", "", parameters) for index in range(200))
    with pytest.raises(InvalidRequest) as refused:
        constraint(
            choose_format("", "hermes"),
            ToolUse(tools),
            thinking_open=False,
            marks=None,
            token_of=starter.vocabulary.special,
        )
    assert refused.value.param == "tools"


@pytest.mark.parametrize(
    "regex", ["a", "^a", "a$", "^a$", "a|b", "^a|b$", "(a|b)", "^(a|b)$", "[|]", r"\|", r"a\$", r"a\\$"]
)
@pytest.mark.parametrize("text", ["a", "b", "ab", "ba", "|", "a$", "a\\", "xax", ""])
def test_an_anchored_pattern_matches_what_a_search_would_find(regex: str, text: str) -> None:
    assert bool(re.fullmatch(anchored(regex), text)) == bool(re.search(regex, text))
