"""Forms of an answer: each field is a grammar that the engine holds the answer to, or a 400 that names it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm.ipc.messages import Constraint
from forgelm.llama.vocab import Vocabulary
from tests.api.live import CHAT, TEXT, Live, message
from tests.api.side import Side
from tests.text.toolcalls.following import Model

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRICT = {"type": "json_schema", "json_schema": {**FORMAT["json_schema"], "strict": True}}
GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'


@pytest.fixture(scope="module")
def model(starter_path: Path) -> Iterator[Model]:
    """Holds answers against constraints, as the engine does."""
    found = Model(Vocabulary.open(starter_path))
    yield found
    found.close()


def grammar(side: Side, **fields: Any) -> Constraint | None:
    """What chats and texts alike ask of the engine."""
    constraint = side.chat(**fields).job.constraint
    assert side.text(**fields).job.constraint == constraint
    return constraint


# --- each field --------------------------------------------------------------------------------------------------

JSON_N = ('{"n": 5}', '{"n": "5"}')
FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": FORMAT}, *JSON_N),
    ({"response_format": STRICT}, *JSON_N),
    ({"response_format": {"type": "json_object"}}, '{"anything": [1, null]}', "[1]"),
    ({"guided_json": SCHEMA}, *JSON_N),
    ({"json_schema": SCHEMA}, *JSON_N),
    ({"structured_outputs": {"json": SCHEMA}}, *JSON_N),
    ({"structured_outputs": {"json_object": True}}, '{"a": 1}', "1"),
    ({"guided_regex": "[a-c]{2}"}, "ab", "abc"),
    ({"guided_regex": "^[a-c]{2}$"}, "ab", "abc"),
    ({"structured_outputs": {"regex": "[a-c]{2}"}}, "ab", "ad"),
    ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes", "yes "),
    ({"guided_grammar": GBNF}, "no", "maybe"),
    ({"guided_grammar": LARK}, "no", "maybe"),
    ({"structured_outputs": {"grammar": LARK}}, "yes", ""),
    ({"structured_outputs": {"grammar": LARK, "json": None}}, "yes", ""),
    ({"grammar": GBNF}, "yes", "yesno"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "good", "bad"), FORMS, ids=lambda value: json.dumps(value)[:60])
def test_each_field_is_a_grammar(smollm: Side, model: Model, fields: dict[str, Any], good: str, bad: str) -> None:
    constraint = grammar(smollm, **fields)
    assert constraint is not None
    assert constraint.triggers == ()
    assert model.takes(constraint, good)
    assert not model.takes(constraint, bad)
    assert not model.takes(constraint, f" {good}")


@pytest.mark.parametrize("form", [None, {"type": "text"}, {"type": "text", "json_schema": None}], ids=str)
def test_no_form_is_no_grammar(smollm: Side, form: Any) -> None:
    assert grammar(smollm, response_format=form, grammar=None) is None


def test_text_beside_a_form_is_that_form(smollm: Side) -> None:
    """`{"type": "text"}` asks for nothing, whatever stands beside it."""
    assert grammar(smollm, response_format={"type": "text"}, grammar=GBNF) == grammar(smollm, grammar=GBNF)


def test_13_a_schema_that_refers_to_itself(smollm: Side, model: Model) -> None:
    """It crashed servers (case 13)."""
    tree = {
        "$defs": {"node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": False,
        }},
        "$ref": "#/$defs/node",
    }  # fmt: skip
    constraint = grammar(smollm, guided_json=tree)
    assert constraint is not None
    assert model.takes(constraint, '{"next": {"next": null}}')
    assert not model.takes(constraint, '{"next": {}}')


# --- refused -----------------------------------------------------------------------------------------------------


def in_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


INVALID: list[tuple[dict[str, Any], str]] = [
    # 15
    (in_format({"type": "string", "pattern": "("}), "response_format.json_schema.schema.pattern"),
    (in_format({"properties": {"a": {"pattern": "[z-a]"}}}), "response_format.json_schema.schema"),
    ({"guided_json": {"type": "string", "pattern": "(?<=x)y"}}, "guided_json.pattern"),
    ({"json_schema": {"type": "string", "pattern": "a{2"}}, "json_schema.pattern"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "a**"}, "guided_regex"),
    ({"guided_regex": "(a{5000}){5000}"}, "guided_regex"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
    # 17
    ({"grammar": "root ::= ("}, "grammar"),
    ({"grammar": "root ::= missing"}, "grammar"),
    ({"grammar": "not a grammar"}, "grammar"),
    ({"grammar": "   "}, "grammar"),
    ({"guided_grammar": "start: missing"}, "guided_grammar"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar"),
    ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar"),
    # 13, 16
    (in_format({"$ref": "#/nowhere"}), "response_format.json_schema.schema.$ref"),
    (in_format({"$ref": "https://example.com/schema"}), "response_format.json_schema.schema.$ref"),
    ({"guided_json": {"$ref": "#"}}, "guided_json.$ref"),
    ({"guided_json": {"type": "string", "maxLength": 10**9}}, "guided_json.maxLength"),
    ({"guided_json": {"type": "string", "maxLength": -1}}, "guided_json.maxLength"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json.not"),
    ({"guided_json": {"type": "strange"}}, "guided_json.type"),
    ({"guided_json": {"type": "text"}}, "guided_json.type"),
    ({"json_schema": {"type": "text"}}, "json_schema.type"),
    ({"guided_json": False}, "guided_json"),
    ({"guided_json": {"enum": []}}, "guided_json.enum"),
    # forms that are none
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema.schema"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_json": "{}"}, "guided_json"),
    ({"json_schema": json.dumps(SCHEMA)}, "json_schema"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"json": "{}"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": "no"}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    # two at once
    ({"response_format": FORMAT, "grammar": GBNF}, "grammar"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"guided_json": SCHEMA, "json_schema": SCHEMA}, "json_schema"),
    ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, "structured_outputs"),
]


@pytest.mark.server
@pytest.mark.parametrize(("fields", "param"), INVALID, ids=lambda value: json.dumps(value)[:60])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_13_15_16_17_what_cant_be_enforced_is_refused(
    live: Live, path: str, fields: dict[str, Any], param: str
) -> None:
    """It was a free-form 200, an error inside a stream, or the end of the server (cases 13, 15, 16, 17)."""
    good = message("Hi") if path == CHAT else {"prompt": "Hi"}
    for stream in (False, True):
        answer = live.post(path, {**good, "stream": stream, **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
        assert len(error["message"]) < 600


def test_a_refusal_is_said_each_time(smollm: Side) -> None:
    """Compiled grammars are kept; failures must not turn into none."""
    for _ in range(3):
        assert smollm.refusal(grammar="root ::= (").param == "grammar"
        assert grammar(smollm, grammar=GBNF) is not None


def test_fields_of_the_same_text_are_told_apart(smollm: Side) -> None:
    """The same text is a grammar in one field and a pattern in another."""
    text = 'start: "a"'
    lark, regex = grammar(smollm, guided_grammar=text), grammar(smollm, guided_regex=text)
    assert lark is not None
    assert lark != regex
    assert smollm.refusal(grammar=text).param == "grammar"


# --- with thinking and tools -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen_model(qwen35_vocab_path: Path) -> Iterator[Model]:
    found = Model(Vocabulary.open(qwen35_vocab_path))
    yield found
    found.close()


def thinking(value: bool) -> dict[str, Any]:
    return {"chat_template_kwargs": {"enable_thinking": value}}


def test_thinking_before_a_form_is_free(qwen: Side, qwen_model: Model) -> None:
    """Forms held for the thinking too, which was then JSON or nothing."""
    constraint = qwen.chat(response_format=FORMAT, **thinking(True)).job.constraint
    assert constraint is not None
    assert constraint.triggers == (qwen.vocabulary.special("</think>"),)
    assert qwen_model.takes(constraint, 'Well, "n"…\n</think>\n\n{"n": 5}')
    assert not qwen_model.takes(constraint, "Well.\n</think>\n\nFive.")


def test_a_form_without_thinking_holds_at_once(qwen: Side, qwen_model: Model) -> None:
    constraint = qwen.chat(response_format=FORMAT, **thinking(False)).job.constraint
    assert constraint is not None
    assert constraint.triggers == ()
    assert qwen_model.takes(constraint, '{"n": 5}')
    assert not qwen_model.takes(constraint, "Well.\n</think>\n\n{}")


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = "<tool_call>\n<function=look>\n</function>\n</tool_call>"


@pytest.mark.parametrize("wanted", [False, True])
def test_a_form_and_tools(qwen: Side, qwen_model: Model, wanted: bool) -> None:
    """A call, or an answer in its form: agents send both with every turn."""
    constraint = qwen.chat(response_format=FORMAT, tools=TOOLS, **thinking(wanted)).job.constraint
    assert constraint is not None
    thought = "hm\n</think>\n\n" if wanted else ""
    assert qwen_model.takes(constraint, thought + CALL)
    assert qwen_model.takes(constraint, f'{thought}{{"n": 5}}')
    assert not qwen_model.takes(constraint, f"{thought}Five.")


def test_a_form_and_a_forced_call(qwen: Side, qwen_model: Model) -> None:
    fields: dict[str, Any] = {"response_format": FORMAT, "tools": TOOLS, "tool_choice": "required"}
    constraint = qwen.chat(**fields, **thinking(False)).job.constraint
    assert constraint is not None
    assert qwen_model.takes(constraint, CALL)
    assert not qwen_model.takes(constraint, '{"n": 5}')
