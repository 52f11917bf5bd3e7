"""Whether the options of a `oneOf` exclude each other, so that one of them is the same as any of them."""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any

Schema = dict[str, Any] | bool
Known = tuple[frozenset[str] | None, Mapping[str, frozenset[str]]]
"""(types, or None for all; required property → constants it can have)."""

_MOST = 64
"""Options that are compared, each with each."""


def disjoint(options: list[Schema], definitions: Mapping[str, Schema]) -> bool:
    """Whether no value is valid for two of `options`: by their types, or by a required property's constants."""
    if len(options) > _MOST:
        return False
    known = [_known(_resolved(option, definitions), definitions) for option in options]
    return all(_apart(first, second) for first, second in combinations(known, 2))


def _apart(first: Known, second: Known) -> bool:
    (types, constants), (others, other_constants) = first, second
    if types is None or others is None:
        return False
    if not types & others:
        return True
    # A constant only tells objects apart, so nothing else may be what both can be.
    return types == others == {"object"} and any(
        not constants[name] & other_constants[name] for name in constants.keys() & other_constants.keys()
    )


def _known(option: Schema, definitions: Mapping[str, Schema]) -> Known:
    if isinstance(option, bool):
        return (None if option else frozenset()), {}
    named = option.get("type")
    types = frozenset([named] if isinstance(named, str) else named) if named else None
    if types and "number" in types:
        types |= {"integer"}
    constants = {}
    for name in option.get("required", ()):
        of_name = _resolved(option.get("properties", {}).get(name, True), definitions)
        found = _constants(of_name)
        if found is not None:
            constants[name] = found
    if types is None:
        found = _constants(option)
        types = None if found is None else frozenset(map(_type_of, found))
    return types, constants


def _constants(option: Schema) -> frozenset[str] | None:
    """All values of `option` as JSON texts, if it lists them."""
    if isinstance(option, bool):
        return None
    listed = [option["const"]] if "const" in option else option.get("enum")
    return None if listed is None else frozenset(json.dumps(value, sort_keys=True) for value in listed)


def _type_of(text: str) -> str:
    kinds = {"n": "null", "t": "boolean", "f": "boolean", '"': "string", "[": "array", "{": "object"}
    return kinds.get(text[0], "integer")


def _resolved(option: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """`option`, or what it refers to if it does nothing else. A reference still being read is unknown."""
    for _ in range(_MOST):
        if isinstance(option, bool) or set(option) != {"$ref"}:
            return option
        option = definitions.get(option["$ref"].rsplit("/", 1)[1], True)
    return True
