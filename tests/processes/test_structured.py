"""Answers in a form, from a real server and model: valid whenever they weren't cut off, and their streams the same.

What each grammar means is tried in `tests/text/structured`; here it is the whole way from the request to the client.
"""

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.processes.asking import Choice, ask, both, lives, one, refused, whole
from tests.processes.serving import Served

pytestmark = [pytest.mark.server, pytest.mark.model]

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "rank": {"type": "integer", "minimum": 1, "maximum": 20},
    },
    "required": ["city", "size", "rank"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"enum": [1, 2]},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
}
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
DRAWN = {"temperature": 1.3, "top_p": 1, "seed": 3}
GBNF = 'root ::= "[" item ("," item)* "]"\nitem ::= [0-9]{1,2}'


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def check(choice: Choice, schema: Any) -> None:
    """It is valid, or was cut off."""
    assert choice.finish in ("stop", "length")
    if choice.finish == "stop":
        jsonschema.validate(json.loads(choice.content), schema)


# --- every way to ask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawing", [{}, DRAWN], ids=["greedy", "drawn"])
def test_a_schema_is_followed(steady: Served, drawing: dict[str, Any]) -> None:
    for choice in both(steady, "Describe Paris as JSON.", response_format=of_schema(CITY), max_tokens=60, **drawing):
        assert choice.finish == "stop"
        check(choice, CITY)


def test_all_names_of_a_schema_are_one(real: Served) -> None:
    forms: list[dict[str, Any]] = [
        {"response_format": of_schema(CITY)},
        {"guided_json": CITY},
        {"json_schema": CITY},
        {"structured_outputs": {"json": CITY}},
    ]
    answers = {whole(real, "Describe Rome as JSON.", **form)[0].content for form in forms}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_regex": "[A-Z][a-z]{2,5}-[0-9]{3}"}, "[A-Z][a-z]{2,5}-[0-9]{3}"),
        ({"structured_outputs": {"regex": "(ab|ba){2}"}}, "(ab|ba){2}"),
        ({"guided_choice": ["positive", "negative", "posit"]}, "positive|negative|posit"),
        ({"structured_outputs": {"choice": ["日本", "👩‍💻"]}}, "日本|👩‍💻"),
        ({"guided_grammar": 'start: "<" /[0-9]{2}/ ">"'}, "<[0-9]{2}>"),
        ({"guided_grammar": GBNF}, r"\[[0-9]{1,2}(,[0-9]{1,2})*\]"),
        ({"grammar": GBNF}, r"\[[0-9]{1,2}(,[0-9]{1,2})*\]"),
        ({"response_format": of_schema({"type": "string", "pattern": "^x[yz]$"})}, '"x[yz]"'),
    ],
    ids=str,
)
@pytest.mark.parametrize("drawing", [{}, DRAWN], ids=["greedy", "drawn"])
def test_a_form_is_followed(steady: Served, form: dict[str, Any], pattern: str, drawing: dict[str, Any]) -> None:
    for choice in both(steady, "Is it good? Name numbers.", max_tokens=24, **form, **drawing):
        assert choice.finish == "length" or re.fullmatch(pattern, choice.content), choice.content


def test_any_object(steady: Served) -> None:
    forms: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ]
    for form in forms:
        choice = one(steady, "Describe Paris as JSON with city and country.", max_tokens=50, **form)
        assert choice.content.startswith("{")
        check(choice, {"type": "object"})


def test_text_completions_have_forms_too(real: Served) -> None:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 10, "guided_choice": ["Rome", "Bonn"]}
    answer = real.http.post(f"{real.base}/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] in ("Rome", "Bonn")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_form_that_is_text_asks_nothing(steady: Served) -> None:
    assert one(steady, response_format={"type": "text"}, max_tokens=6).said == one(steady, max_tokens=6).said


# --- together with other fields -----------------------------------------------------------------------------------


def test_with_several_choices_and_log_probabilities(real: Served) -> None:
    fields = {
        "n": 3,
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": of_schema(CITY),
        "max_tokens": 50,
        **DRAWN,
    }
    choices = whole(real, "Invent a town as JSON.", **fields)
    for choice in choices:
        check(choice, CITY)
        said = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode()
        assert said.removesuffix("<|im_end|>") == choice.content
        for entry in choice.logprobs:
            assert entry["logprob"] <= 0
            assert len(entry["top_logprobs"]) == 3
    assert len({choice.content for choice in choices}) > 1


def test_a_stop_string_wins(steady: Served) -> None:
    choice = one(steady, "Describe Paris as JSON.", response_format=of_schema(CITY), stop=['"size"'], logprobs=True)
    assert choice.finish == "stop"
    assert choice.content.endswith(", ")
    assert "size" not in b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode()


def test_min_tokens_hold_where_the_form_has_room(real: Served) -> None:
    """A form that is complete ends the answer whatever is asked for; one that may go on goes on."""
    short = ask(real, guided_regex="[a-z ]{1,400}", min_tokens=12, max_tokens=16)
    assert short["usage"]["completion_tokens"] >= 12
    done = ask(real, guided_choice=["yes"], min_tokens=12, max_tokens=16)["choices"][0]
    assert (done["message"]["content"], done["finish_reason"]) == ("yes", "stop")


def test_penalties_do_not_break_a_form(steady: Served) -> None:
    """They are applied before the grammar: what it leaves is drawn from, however unlikely."""
    penalties = {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 10}
    choice = one(steady, "Count.", guided_regex="(1,){6}", **penalties)
    assert (choice.content, choice.finish) == ("1,1,1,1,1,1,", "stop")


def test_cut_off_by_length(steady: Served) -> None:
    choice = one(steady, "Describe Paris as JSON.", response_format=of_schema(CITY), max_tokens=5)
    assert choice.finish == "length"
    assert choice.content.startswith('{"city": "')


def test_ignore_eos_does_not_go_on_behind_a_form(steady: Served) -> None:
    choice = one(steady, guided_choice=["yes", "no"], ignore_eos=True, max_tokens=20)
    assert choice.content in ("yes", "no")
    assert choice.finish == "stop"


# --- what can't be followed ---------------------------------------------------------------------------------------


def test_13_schemas_that_refer_to_themselves(steady: Served) -> None:
    for drawing in ({}, DRAWN):
        for choice in both(steady, "A list as JSON.", response_format=of_schema(TREE), max_tokens=50, **drawing):
            check(choice, TREE)
    path = "response_format.json_schema.schema"
    assert refused(steady, response_format=of_schema({"$ref": "#"})) == f"{path}.$ref"
    assert refused(steady, response_format=of_schema(ENDLESS)) == path
    lives(steady)


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "*a", "(?=a)b", r"\1"])
def test_15_patterns_that_are_none(real: Served, pattern: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    assert refused(real, response_format=of_schema(schema)).startswith("response_format.json_schema.schema")
    assert refused(real, guided_regex=pattern) == "guided_regex"


@pytest.mark.parametrize("length", [2000, 65_536])
def test_16_long_strings(steady: Served, length: int) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "maxLength": length}}, "required": ["x"]}
    assert one(steady, response_format=of_schema(schema), max_tokens=8).content.startswith('{"x": "')


@pytest.mark.parametrize("grammar", ["root ::= (", "root ::= other", "rot ::= [", "hello", ""])
def test_17_grammars_that_are_none(real: Served, grammar: str) -> None:
    assert refused(real, grammar=grammar) == "grammar"
    lives(real)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": of_schema({"type": "text"})}, "response_format.json_schema.schema.type"),
        ({"response_format": of_schema({"not": {}})}, "response_format.json_schema.schema.not"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{}"}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
    ids=str,
)
def test_forms_that_cannot_be_followed(real: Served, form: dict[str, Any], param: str) -> None:
    assert refused(real, **form) == param


# --- what comes out on the way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_other_fields_leave_nothing_of_is_the_requests_fault(real: Served, stream: bool) -> None:
    """It ended with a 503 that asked to try again."""
    body = {"prompt": "The", "guided_choice": ["a", "b"], "logit_bias": [[token, False] for token in range(1024)]}
    answer = real.http.post(f"{real.base}/v1/completions", json={**body, "stream": stream})
    if stream:
        assert answer.status_code == 200
        error = json.loads(answer.text.strip().removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 400
        error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "logit_bias")
    assert "no token is left" in error["message"]
    lives(real)
