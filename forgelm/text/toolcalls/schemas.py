"""What a JSON schema says about a tool's parameters: their names, and which types of values they may have."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

ALL_TYPES = frozenset(("string", "number", "boolean", "null", "object", "array"))
DEPTH = 16
"""Of references and alternatives that are followed; deeper, anything may come."""


def properties(parameters: Schema) -> dict[str, Schema]:
    """A tool's declared parameters with their schemas."""
    found = resolve(parameters, parameters).get("properties")
    if not isinstance(found, dict):
        return {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in found.items()}


def required(parameters: Schema) -> tuple[str, ...]:
    """The declared parameters that every call must give."""
    names, known = resolve(parameters, parameters).get("required"), properties(parameters)
    return tuple(name for name in known if isinstance(names, list) and name in names)


def resolve(schema: Schema, root: Schema) -> Schema:
    """`schema`, or what its `$ref` to a place within `root` means; anything, where that leads nowhere."""
    for _ in range(DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = root
        for part in reference.removeprefix("#").split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, dict) else None
        if not reference.startswith("#") or not isinstance(target, dict):
            return {}
        schema = target
    return {}


def branches(schema: Schema, root: Schema, depth: int = DEPTH) -> Iterator[Schema]:
    """The alternatives that a schema allows, with references resolved; itself if there is only one."""
    schema = resolve(schema, root)
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list) and options and depth:
            for option in options:
                yield from branches(option if isinstance(option, dict) else {}, root, depth - 1)
            return
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict) and depth:
        # A reference with something beside it, such as a description, is often written so.
        beside = {key: value for key, value in schema.items() if key != "allOf"}
        yield from branches({**beside, **resolve(parts[0], root)}, root, depth - 1)
        return
    names = schema.get("type")
    if isinstance(names, list) and names:
        yield from ({**schema, "type": name} for name in names)
    else:
        yield schema


def types(schema: Schema, root: Schema) -> frozenset[str]:
    """The JSON types of the values that a parameter may have; `number` includes integers."""
    return frozenset(name for branch in branches(schema, root) for name in _types(branch))


def _types(branch: Schema) -> frozenset[str]:
    name = branch.get("type")
    if isinstance(name, str):
        return frozenset(("number",)) if name == "integer" else frozenset((name,))
    for values in (branch.get("enum"), [branch["const"]] if "const" in branch else None):
        if isinstance(values, list):
            return frozenset(map(type_of, values))
    return ALL_TYPES


def type_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
