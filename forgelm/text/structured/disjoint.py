"""Whether the options of a `oneOf` exclude each other, so that one of them is the same as any of them."""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

Schema = dict[str, Any] | bool

_MOST = 64
"""Options that are compared, each with each."""


class Known(NamedTuple):
    """What is certain of an option's values."""

    types: frozenset[str] | None = None
    """None: any."""
    constants: frozenset[str] | None = None
    """All of its values, as JSON; None: not listed."""
    properties: Mapping[str, frozenset[str]] = {}
    """Required property → all of its values, as JSON."""


def disjoint(options: list[Schema], definitions: Mapping[str, Schema]) -> bool:
    """Whether no value is valid for two of `options`: by type, by constants, or by a required property's constants."""
    if len(options) > _MOST:
        return False
    known = [_known(_resolved(option, definitions), definitions) for option in options]
    return all(_apart(first, second) for first, second in combinations(known, 2))


def _apart(first: Known, second: Known) -> bool:
    if first.constants is not None and second.constants is not None:
        return not first.constants & second.constants
    if first.types is None or second.types is None:
        return False
    if not first.types & second.types:
        return True
    # A property tells objects alone apart, so nothing else may be what both can be.
    return first.types == second.types == {"object"} and any(
        not first.properties[name] & second.properties[name] for name in first.properties.keys() & second.properties
    )


def _known(option: Schema, definitions: Mapping[str, Schema]) -> Known:
    if isinstance(option, bool):
        return Known() if option else Known(types=frozenset(), constants=frozenset())
    constants, types = _constants(option), None
    if "type" in option:
        named = option["type"]
        types = frozenset([named] if isinstance(named, str) else named)
        # Every integer is a number.
        types |= {"integer"} if "number" in types else frozenset()
    properties = {}
    for name in option.get("required", ()):
        described = _constants(_resolved(option.get("properties", {}).get(name, True), definitions))
        if described is not None:
            properties[name] = described
    return Known(types, constants, properties)


def _constants(option: Schema) -> frozenset[str] | None:
    if isinstance(option, bool):
        return None
    listed = [option["const"]] if "const" in option else option.get("enum")
    return None if listed is None else frozenset(json.dumps(value, sort_keys=True) for value in listed)


def _resolved(option: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """`option`, or what it refers to if it does nothing else. A reference still being read is unknown."""
    for _ in range(_MOST):
        if isinstance(option, bool) or set(option) != {"$ref"}:
            return option
        option = definitions.get(option["$ref"].rpartition("/")[2], True)
    return True
