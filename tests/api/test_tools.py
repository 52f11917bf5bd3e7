"""Tools: checked by name, told to the model, and what the answer may do with them is what the engine is held to."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from forgelm.llama.vocab import Vocabulary
from tests.api.side import Side
from tests.text.toolcalls.following import Model

NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def tool(name: str, properties: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A function as OpenAI's clients declare it; all its properties are required."""
    parameters = {"type": "object", "properties": properties or {}, "required": list(properties or {})}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


LOOK = tool("look", {"text": {"type": "string"}})
WAIT = tool("wait", {"seconds": {"type": "integer"}})
TOOLS = [LOOK, WAIT]
NAMED = {"type": "function", "function": {"name": "wait"}}


def called(name: str, **arguments: str) -> str:
    """A call as Qwen3.5 writes it."""
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


LOOKS, WAITS = called("look", text="a b"), called("wait", seconds="3")


@pytest.fixture(scope="module")
def model(qwen35_vocab_path: Path) -> Iterator[Model]:
    """Holds answers against constraints, as the engine does."""
    found = Model(Vocabulary.open(qwen35_vocab_path))
    yield found
    found.close()


# --- what the engine is held to ----------------------------------------------------------------------------------

FREE, ONE, OTHER, BOTH, TEXT_FIRST = "Hello.", LOOKS, WAITS, f"{LOOKS}\n{WAITS}", f"I look.\n{LOOKS}"
ALLOWED: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {FREE, ONE, OTHER, BOTH, TEXT_FIRST}),
    ({"tool_choice": "auto"}, {FREE, ONE, OTHER, BOTH, TEXT_FIRST}),
    ({"tool_choice": None, "parallel_tool_calls": None}, {FREE, ONE, OTHER, BOTH, TEXT_FIRST}),
    ({"parallel_tool_calls": False}, {FREE, ONE, OTHER, TEXT_FIRST}),
    ({"tool_choice": "required"}, {ONE, OTHER, BOTH}),
    ({"tool_choice": "any"}, {ONE, OTHER, BOTH}),
    ({"tool_choice": "required", "parallel_tool_calls": False}, {ONE, OTHER}),
    ({"tool_choice": NAMED}, {OTHER}),
    ({"tool_choice": {"type": "function", "name": "wait"}}, {OTHER}),
]


@pytest.mark.parametrize(
    ("fields", "allowed"), ALLOWED, ids=lambda value: str(sorted(value) if isinstance(value, set) else value)[:50]
)
@pytest.mark.parametrize("options", [NO_THINKING, THINKING], ids=["at once", "thinking"])
def test_23_25_the_answers_that_a_choice_allows(
    qwen: Side, model: Model, fields: dict[str, Any], allowed: set[str], options: dict[str, Any]
) -> None:
    """`required` gave free text, a named function another one, and `parallel_tool_calls: false` two calls
    (cases 23, 25)."""
    constraint = qwen.chat(tools=TOOLS, **fields, **options).job.constraint
    assert constraint is not None
    thought = "I could look.\n</think>\n\n" if options is THINKING else ""
    found = {said for said in (FREE, ONE, OTHER, BOTH, TEXT_FIRST) if model.takes(constraint, thought + said)}
    assert found == allowed


def test_free_text_may_come_before_a_call_and_not_after_it(qwen: Side, model: Model) -> None:
    constraint = qwen.chat(tools=TOOLS, **NO_THINKING).job.constraint
    assert constraint is not None
    assert not model.takes(constraint, f"{LOOKS}\nThere.")


@pytest.mark.parametrize(
    "said",
    [
        called("jump"),
        called("wait", seconds="soon"),
        called("wait", seconds="3.5"),
        called("wait"),
        called("wait", seconds="3", text="x"),
        called("look", texts="x"),
    ],
)
def test_calls_of_what_is_no_tool(qwen: Side, model: Model, said: str) -> None:
    """Names, required parameters and types hold though the tools aren't strict."""
    constraint = qwen.chat(tools=TOOLS, **NO_THINKING).job.constraint
    assert constraint is not None
    assert not model.takes(constraint, said)


@pytest.mark.parametrize("choice", ["none", "auto", None])
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_is_no_constraint(qwen: Side, tools: Any, choice: str | None) -> None:
    prepared = qwen.chat(tools=tools, tool_choice=choice)
    assert prepared.job.constraint is None
    assert prepared.reading.calls is None
    assert prepared.job.prompt == qwen.chat().job.prompt


def test_tools_that_must_not_be_called(qwen: Side) -> None:
    """With `none` nothing is looked for in the answer, and nothing is told to the model."""
    prepared = qwen.chat(tools=TOOLS, tool_choice="none")
    assert prepared.job.constraint is None
    assert prepared.reading.calls is None
    assert prepared.job.prompt == qwen.chat().job.prompt


# --- the prompt --------------------------------------------------------------------------------------------------


def test_tools_are_told_as_they_were_sent(qwen: Side) -> None:
    """Key order and spelling are the client's: what models were trained on, and what makes prefixes the same."""
    odd = {
        "type": "function",
        "function": {"parameters": {"type": "object"}, "name": "look", "description": "<é> & 'x'"},
    }
    prompt = qwen.prompt(qwen.chat(tools=[odd]))
    assert json.dumps(odd, ensure_ascii=False) in prompt


def test_a_model_without_tools_in_its_template_is_told_too(smollm: Side) -> None:
    """The starter's template drops them without a word: they are told in the system message."""
    prepared = smollm.chat(tools=TOOLS)
    assert prepared.job.constraint is not None
    assert prepared.reading.calls is not None
    prompt = smollm.prompt(prepared)
    assert all(name in prompt for name in ("look", "wait", "seconds"))


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "What is there?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"text": "a b"}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
]  # fmt: skip


@pytest.mark.parametrize("side", ["qwen", "smollm"])
@pytest.mark.parametrize("content", [None, "", "missing"])
def test_19_calls_without_words(side: str, content: str | None, request: pytest.FixtureRequest) -> None:
    """`content: null` beside calls was a 400, and left out a 500 (case 19)."""
    found: Side = request.getfixturevalue(side)
    messages = copy.deepcopy(HISTORY)
    messages[1]["content"] = content
    if content == "missing":
        del messages[1]["content"]
    prompt = found.prompt(found.chat(messages=messages, tools=TOOLS))
    assert "a cat" in prompt
    assert "a b" in prompt
    assert "None" not in prompt


def test_a_conversation_goes_on_with_what_the_model_wrote(qwen: Side) -> None:
    assert LOOKS in qwen.prompt(qwen.chat(messages=HISTORY, tools=TOOLS))
    assert LOOKS in qwen.prompt(qwen.chat(messages=HISTORY)), "though there are no tools any more"


def test_what_clients_send_back_is_what_they_got(qwen: Side) -> None:
    """The message of an answer is taken as it is, in the next request."""
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
        {"id": "call_0123456789abcdef01234567", "type": "function", "index": 0,
         "function": {"name": "wait", "arguments": '{"seconds": 3}'}},
    ]}  # fmt: skip
    messages = [HISTORY[0], message, {"role": "tool", "tool_call_id": "call_0123456789abcdef01234567", "content": ""}]
    assert WAITS in qwen.prompt(qwen.chat(messages=messages, tools=TOOLS))


# --- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "strict"), [(2000, False), (2000, True), (65_536, False)])
def test_16_long_strings(qwen: Side, model: Model, length: int, strict: bool) -> None:
    """A bound of 2000 took minutes, one of 65536 all memory (case 16)."""
    prepared = qwen.chat(
        tools=[tool("look", {"text": {"type": "string", "maxLength": length}}, strict=strict)], **NO_THINKING
    )
    assert prepared.job.constraint is not None
    assert len(prepared.job.constraint.grammar) < 2000
    assert model.takes(prepared.job.constraint, called("look", text="a" * 100))


def test_16_a_bound_that_is_too_long_for_a_strict_tool(qwen: Side) -> None:
    long = tool("look", {"text": {"type": "string", "maxLength": 65_536}}, strict=True)
    with pytest.raises(InvalidRequest) as caught:
        qwen.chat(tools=[long], **NO_THINKING)
    assert caught.value.param == "tools[0].function.parameters.properties.text.maxLength"


def test_16_a_bound_of_a_strict_tool_holds(qwen: Side, model: Model) -> None:
    short = tool("look", {"text": {"type": "string", "maxLength": 20}}, strict=True)
    constraint = qwen.chat(tools=[short], **NO_THINKING).job.constraint
    assert constraint is not None
    assert model.takes(constraint, called("look", text="a" * 20))
    assert not model.takes(constraint, called("look", text="a" * 21))


def test_a_schema_that_cant_be_kept_is_fine_for_tools_that_arent_strict(qwen: Side, model: Model) -> None:
    """MCP servers declare all kinds of things; what can be held to is."""
    odd = tool("look", {"text": {"type": "string", "pattern": "(?=x)"}, "n": {"type": "integer"}})
    constraint = qwen.chat(tools=[odd], **NO_THINKING).job.constraint
    assert constraint is not None
    assert model.takes(constraint, called("look", text="anything", n="3"))
    assert not model.takes(constraint, called("look", text="anything", n="three"))
