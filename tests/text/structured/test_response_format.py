"""`response_format` in its forms: what becomes a grammar, and what is refused by path."""

from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from forgelm.text.structured import json_object, json_schema, response_format

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("value", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, json_object("x")),
        ({"type": "json_object", "schema": None}, json_object("x")),
        ({"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}, json_schema(SCHEMA, "x")),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}, json_schema(SCHEMA, "x")),
        # llama-server's form of it; the schema was once left unread here, and any object came.
        ({"type": "json_object", "schema": SCHEMA}, json_schema(SCHEMA, "x")),
        ({"type": "json_object", "schema": {"const": "42"}}, json_schema({"const": "42"}, "x")),
    ],
    ids=str,
)
def test_each_form_has_its_grammar(value: dict[str, Any], grammar: str | None) -> None:
    assert response_format(value, "response_format") == grammar


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "sound"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "it"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": 5}}}, "response_format.json_schema.schema.type"),
        ({"type": "json_object", "schema": 123}, "response_format.schema"),
        ({"type": "json_object", "schema": {"type": 123}}, "response_format.schema.type"),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, "response_format.schema.type"),
    ],
    ids=str,
)
def test_what_is_none_of_them_is_refused_by_path(value: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response_format(value, "response_format")
    assert caught.value.param == param
