"""Tools that can't be served: a 400 that names what is wrong with them, whole or streamed."""

import json
from typing import Any

import pytest

from forgelm.api.tools import MAX_TOOLS
from tests.api.live import CHAT, Live
from tests.api.side import Side
from tests.api.test_tools import HISTORY, NAMED, TOOLS, WAIT, tool


def with_function(**fields: Any) -> list[dict[str, Any]]:
    return [WAIT, {"type": "function", "function": {"name": "look", **fields}}]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{}]}, "tools[0].function"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": None}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": []}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": 5, "function": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": ["function"], "function": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": with_function(name=5)}, "tools[1].function.name"),
    ({"tools": with_function(name="")}, "tools[1].function.name"),
    ({"tools": with_function(name="a b")}, "tools[1].function.name"),
    ({"tools": with_function(name="a>b")}, "tools[1].function.name"),
    ({"tools": with_function(name="a\n")}, "tools[1].function.name"),
    ({"tools": with_function(name="é")}, "tools[1].function.name"),
    ({"tools": with_function(name="a" * 129)}, "tools[1].function.name"),
    ({"tools": with_function(name="wait")}, "tools[1].function.name"),
    ({"tools": with_function(description=5)}, "tools[1].function.description"),
    ({"tools": with_function(strict="yes")}, "tools[1].function.strict"),
    ({"tools": with_function(parameters=[])}, "tools[1].function.parameters"),
    ({"tools": with_function(parameters="{}")}, "tools[1].function.parameters"),
    ({"tools": with_function(parameters={"type": "string"})}, "tools[1].function.parameters"),
    ({"tools": with_function(parameters={"type": ["object"]})}, "tools[1].function.parameters"),
    ({"tools": with_function(parameters={"properties": "x"})}, "tools[1].function.parameters.properties"),
    ({"tools": with_function(parameters={"properties": {"x": []}})}, "tools[1].function.parameters.properties"),
    ({"tools": with_function(parameters={"required": [[]]})}, "tools[1].function.parameters.required"),
    ({"tools": [tool(f"t{n}") for n in range(MAX_TOOLS + 1)]}, "tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "jump"}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"function": {"name": "wait"}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "wait"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "Required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": ""}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
]


@pytest.mark.server
@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_23_tools_that_cant_be_served(live: Live, fields: dict[str, Any], param: str) -> None:
    """A name that doesn't exist gave a free answer, and wrong declarations a 500 (case 23)."""
    for stream in (False, True):
        answer = live.post(CHAT, {"messages": HISTORY[:1], "stream": stream, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert len(answer.content) < 800


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "string", "pattern": "("}, "properties.text.pattern"),
        ({"type": "string", "pattern": "(?=x)"}, "properties.text.pattern"),
        ({"type": "strange"}, "properties.text.type"),
        ({"$ref": "#/nowhere"}, "properties.text.$ref"),
        ({"type": "array", "items": {"not": {}}}, "properties.text.items.not"),
        ({"type": "string", "maxLength": 10_000_000}, "properties.text.maxLength"),
    ],
    ids=str,
)
def test_15_16_a_strict_tools_schema_is_kept_or_refused(qwen: Side, schema: dict[str, Any], param: str) -> None:
    """Strict schemas that couldn't be compiled were dropped, and the answer was free (cases 15, 16)."""
    error = qwen.refusal(tools=[WAIT, tool("look", {"text": schema}, strict=True)])
    assert (error.status, error.param) == (400, f"tools[1].function.parameters.{param}")


@pytest.mark.parametrize("name", ["a>b", "a\nb", "</function>", "a" * 50 + ">"])
def test_a_parameter_that_cant_be_written_is_refused(qwen: Side, name: str) -> None:
    """Qwen3.5 writes `<parameter=NAME>`: what follows the bracket became part of the value, in silence."""
    error = qwen.refusal(tools=[WAIT, tool("look", {name: {"type": "string"}})])
    assert (error.status, error.param) == (400, "tools[1].function.parameters")
    inside = tool("look", {"deep": {"type": "object", "properties": {name: {}}}})
    assert qwen.chat(tools=[inside]).job.constraint is not None, "JSON can hold it"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("look", {"text": deep(900)})]}, "tools"),
        ({"chat_template_kwargs": deep(900)}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": deep(900)}}]}]},
            "messages",
        ),
    ],
    ids=["tools", "kwargs", "arguments"],
)
def test_what_nests_without_end_is_named(qwen: Side, fields: dict[str, Any], param: str) -> None:
    error = qwen.refusal(**fields)
    assert (error.status, error.param) == (400, param)
