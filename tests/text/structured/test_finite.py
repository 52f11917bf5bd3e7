"""Schemas that refer to themselves: with a way out they are followed, without one refused."""

from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from forgelm.text.structured import json_schema

SELF: Any = {"$ref": "#"}
NODE: Any = {"$ref": "#/$defs/node"}


def node(*, required: bool = True, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields) if required else []}


ENDLESS: dict[str, Any] = {
    "a required property": node(a=SELF),
    "behind a finite one": node(n={"type": "integer"}, a=SELF),
    "further down": node(a=node(b=SELF)),
    "an item": {"type": "array", "items": SELF, "minItems": 1},
    "a first item": {"type": "array", "prefixItems": [SELF], "minItems": 1},
    "every option": {"anyOf": [node(a=SELF), {"type": "array", "items": SELF, "minItems": 2}]},
    "every type": {**node(a=SELF), "type": ["object", "array"], "items": SELF, "minItems": 1},
    "any other property": {"type": "object", "required": ["a"], "additionalProperties": SELF},
    "two that need each other": {
        "type": "object",
        "$defs": {"node": node(a={"$ref": "#/$defs/other"}), "other": node(b=NODE)},
        "properties": {"maybe": NODE},
    },
}
ENDING: dict[str, Any] = {
    "optional": node(required=False, a=SELF),
    "a list": {"type": "array", "items": SELF},
    "items behind the first": {"type": "array", "prefixItems": [{"type": "null"}], "items": SELF, "minItems": 1},
    "or null": {"$ref": "#/$defs/node", "$defs": {"node": node(next={"anyOf": [NODE, {"type": "null"}]})}},
    "or a number": {**node(a=SELF), "type": ["object", "number"]},
    "of any type": {"properties": {"a": SELF}, "required": ["a"]},
    "constants": {"anyOf": [{"enum": ["leaf"]}, node(a=SELF)]},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_schemas_without_a_way_out_are_refused(name: str) -> None:
    """Their text was forced on and on, until the engine gave up with a 503."""
    with pytest.raises(InvalidRequest, match="no value is ever complete") as raised:
        json_schema(ENDLESS[name], "schema")
    assert (raised.value.param or "").startswith("schema")


@pytest.mark.parametrize("name", ENDING)
def test_schemas_with_one_are_taken(name: str) -> None:
    assert json_schema(ENDING[name], "schema")
