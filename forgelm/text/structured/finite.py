"""Schemas that need themselves: an object with a required property that is such an object has no end, nor any value."""

from collections.abc import Mapping
from typing import Any

from forgelm.text.structured.disjoint import Schema


def endless(defs: Mapping[str, Schema]) -> list[str]:
    """The names in `defs`, normalized schemas, that no finite value is valid under; in order.

    What is told from references and required parts alone: another contradiction isn't found.
    """
    ending: set[str] = set()
    while found := {name for name, schema in defs.items() if name not in ending and _ends(schema, ending)}:
        ending |= found
    return [name for name in defs if name not in ending]


def _ends(schema: Schema, ending: set[str]) -> bool:
    """Whether a value is known to be finite, given the names in `ending` whose values may be."""
    if isinstance(schema, bool) or "const" in schema or "enum" in schema:
        return True
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in ending:
        return False
    if "anyOf" in schema and not any(_ends(option, ending) for option in schema["anyOf"]):
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    kinds = schema.get("type", "null")
    return any(
        all(_ends(part, ending) for part in _needed(schema, kind))
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _needed(schema: dict[str, Any], kind: str) -> list[Schema]:
    """The schemas of the parts that each value of type `kind` has."""
    if kind == "object":
        known = schema.get("properties", {})
        # Which pattern a name matches isn't looked into.
        other = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return [known.get(name, other) for name in schema.get("required", ())]
    if kind == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        return [*first[:least], *([schema.get("items", True)] if least > len(first) else [])]
    return []
