"""JSON Schema's keywords without schemas inside: each checked, and written as llguidance enforces it.

Each function gets the keyword's value, its path, and the schema it stands in, and returns the keywords that take its
place.
"""

from collections.abc import Callable, Mapping
from typing import Any

import forgelm.text.structured.values as values  # noqa: PLR0402  else the package imports itself
from forgelm.text.structured.formats import NATIVE, PATTERNS
from forgelm.text.structured.limits import MAX_PROPERTIES, refuse
from forgelm.text.structured.patterns import ecma

Node = Mapping[str, Any]
Written = dict[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANNOTATIONS = _words(
    "title description default examples example $comment deprecated readOnly writeOnly $id id $defs definitions "
    "$anchor $dynamicAnchor $recursiveAnchor discriminator externalDocs xml markdownDescription enumDescriptions"
)
"""Say nothing of which values are valid. So do all that begin with `x-`."""
UNENFORCED = _words(
    "not if then else contains minContains maxContains dependencies dependentRequired dependentSchemas "
    "unevaluatedItems unevaluatedProperties contentEncoding contentMediaType contentSchema $dynamicRef $recursiveRef "
    "$vocabulary nullable"
)
TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
DIALECTS = tuple(
    f"json-schema.org/{dialect}/schema"
    for dialect in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)


def types(value: Any, path: str, node: Node) -> Written:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            refuse(f"{name!r} is no type of JSON Schema", path)
    if not names:
        refuse("a list of types must not be empty", path)
    return {"type": value}


def const(value: Any, path: str, node: Node) -> Written:
    return {"const": values.constant(value, path)}


def enum(value: Any, path: str, node: Node) -> Written:
    if not isinstance(value, list) or not value:
        refuse("this must be a list of at least one value", path)
    return {"enum": [values.constant(item, f"{path}.{index}") for index, item in enumerate(value)]}


def count(value: Any, path: str, node: Node) -> Written:
    return {path.rsplit(".", 1)[1]: values.count(value, path)}


def bound(value: Any, path: str, node: Node) -> Written:
    return {path.rsplit(".", 1)[1]: values.bound(value, path)}


def exclusive(value: Any, path: str, node: Node) -> Written:
    """A number, or as in draft 4 whether the bound itself is out."""
    keyword = path.rsplit(".", 1)[1]
    if not isinstance(value, bool):
        return bound(value, path, node)
    inclusive = keyword.removeprefix("exclusive").lower()
    if inclusive not in node:
        refuse(f"this means nothing without {inclusive}", path)
    return {keyword: values.bound(node[inclusive], path)} if value else {}


def multiple_of(value: Any, path: str, node: Node) -> Written:
    values.multiple(value, path)
    return {"multipleOf": value}


def pattern(value: Any, path: str, node: Node) -> Written:
    if not isinstance(value, str):
        refuse("this must be a regular expression", path)
    return {"pattern": ecma(value, path)}


def format_(value: Any, path: str, node: Node) -> Written:
    if isinstance(value, str) and value in PATTERNS:
        return {"pattern": PATTERNS[value]}
    if not isinstance(value, str) or value not in NATIVE:
        known = ", ".join(sorted(NATIVE | PATTERNS.keys()))
        refuse(f"the format {value!r} can't be enforced: these can be: {known}", path)
    return {"format": value}


def required(value: Any, path: str, node: Node) -> Written:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse("this must be a list of names", path)
    if len(value) > MAX_PROPERTIES:
        refuse(f"at most {MAX_PROPERTIES} names are taken, not {len(value)}", path)
    return {"required": [values.name(name, path) for name in dict.fromkeys(value)]}


def min_properties(value: Any, path: str, node: Node) -> Written:
    least, needed = values.count(value, path), node.get("required", ())
    if least > 1 + (len(set(map(str, needed))) if isinstance(needed, list) else 0):
        # A name that `properties` doesn't hold may come twice, and is one property then.
        refuse("this can't be enforced unless all but one of them are required", path)
    return {"minProperties": least}


def property_names(value: Any, path: str, node: Node) -> Written:
    rule = {key: item for key, item in value.items() if key not in ANNOTATIONS} if isinstance(value, dict) else value
    if rule is not True and rule not in ({}, {"type": "string"}):
        refuse("propertyNames can't be enforced; use patternProperties", path)
    return {}


def unique_items(value: Any, path: str, node: Node) -> Written:
    if value is not False:
        refuse("uniqueItems can't be enforced", path)
    return {}


def dialect(value: Any, path: str, node: Node) -> Written:
    if not isinstance(value, str) or not value.rstrip("#").endswith(DIALECTS):
        refuse("this is no dialect of JSON Schema that is known here: draft-04 to 2020-12 are", path)
    return {}


PLAIN: Mapping[str, Callable[[Any, str, Node], Written]] = {
    "type": types,
    "const": const,
    "enum": enum,
    "minLength": count,
    "maxLength": count,
    "minItems": count,
    "maxItems": count,
    "maxProperties": count,
    "minProperties": min_properties,
    "minimum": bound,
    "maximum": bound,
    "exclusiveMinimum": exclusive,
    "exclusiveMaximum": exclusive,
    "multipleOf": multiple_of,
    "pattern": pattern,
    "format": format_,
    "required": required,
    "propertyNames": property_names,
    "uniqueItems": unique_items,
    "$schema": dialect,
}
"""Keyword → its function."""
