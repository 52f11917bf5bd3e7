"""A JSON Schema, checked keyword by keyword and written anew with those alone that llguidance enforces to the letter.

llguidance skips keywords it doesn't know, and reads some loosely. Here every keyword is one of three: enforced, an
annotation (dropped), or refused with its path. What `$ref` points to is copied to `$defs` of the result, so that
nothing else of the original is left in it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import forgelm.text.structured.values as values  # noqa: PLR0402  else the package imports itself
from forgelm.text.structured.disjoint import Schema, disjoint
from forgelm.text.structured.finite import endless
from forgelm.text.structured.keywords import ANNOTATIONS, PLAIN, UNENFORCED
from forgelm.text.structured.limits import (
    MAX_DEPTH,
    MAX_MULTIPLE,
    MAX_PATTERNS,
    MAX_PROPERTIES,
    MAX_SCHEMAS,
    MAX_VALUES,
    refuse,
)
from forgelm.text.structured.patterns import ecma


class Place(NamedTuple):
    """Where a schema stands."""

    path: str
    depth: int
    """Schemas around it, references followed."""
    owner: str | None
    """The reference to whose target's value this applies; None for a part of the value."""
    renamed: bool = False
    """A `$id` on the way here changed what `#/…` means."""

    def below(self, part: str | int, *, inside: bool = True) -> "Place":
        """The place of a schema under keyword, name or index `part`; `inside` when it is for a part of the value."""
        return Place(f"{self.path}.{part}", self.depth, None if inside else self.owner, self.renamed)


def normalize(schema: Any, param: str) -> Schema:
    """`schema` in the dialect that llguidance enforces. Raises `InvalidRequest` with the path as `param`."""
    return _Normalizer(schema, param).run()


class _Normalizer:
    def __init__(self, document: Any, param: str) -> None:
        self._document = document
        self._param = param
        self._names: dict[str, str] = {}
        """Reference → the name of its target in `_defs`."""
        self._defs: dict[str, Schema] = {}
        self._same: dict[str, dict[str, str]] = {}
        """Reference → the references whose targets apply to the same value, and where that is said."""
        self._schemas = 0
        self._values = 0
        self._multiple = 1

    def run(self) -> Schema:
        root = self._schema(self._document, Place(self._param, 0, "#"))
        self._check_loops()
        self._check_ends()
        if self._defs and isinstance(root, dict):
            root["$defs"] = self._defs
        return root

    def _schema(self, node: Any, place: Place) -> Schema:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            refuse("a schema must be an object, true or false", place.path)
        self._schemas += 1
        if self._schemas > MAX_SCHEMAS:
            refuse(f"at most {MAX_SCHEMAS} schemas are taken", self._param)
        if place.depth > MAX_DEPTH:
            refuse(f"schemas are nested over {MAX_DEPTH} deep, references followed", place.path)
        renamed = place.renamed or ("$id" in node and place.depth > 0)
        return self._written(node, place._replace(depth=place.depth + 1, renamed=renamed))

    def _written(self, node: Mapping[str, Any], place: Place) -> Schema:
        out: dict[str, Any] = {}
        also: list[Schema] = []
        for keyword, value in node.items():
            for name, written in self._keyword(keyword, value, place, node).items():
                # A keyword may be written as another that the schema has as well: both have to hold.
                if name in out:
                    also.append({name: written})
                else:
                    out[name] = written
        if also:
            out["allOf"] = [*out.get("allOf", ()), *also]
        return out

    def _keyword(self, keyword: str, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{place.path}.{keyword}"
        if keyword in PLAIN:
            self._count(keyword, value, path)
            return PLAIN[keyword](value, path, node)
        if keyword in _NESTED:
            return _NESTED[keyword](self, value, place, node)
        if keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            problem = "can't be enforced" if keyword in UNENFORCED else "is no keyword of JSON Schema"
            refuse(f"{keyword} {problem}", path)
        return {}

    def _count(self, keyword: str, value: Any, path: str) -> None:
        """Bounds over the whole schema."""
        if keyword in ("enum", "const"):
            self._values += values.weight(value)
            if self._values > MAX_VALUES:
                refuse(f"all constants together are over {MAX_VALUES} values, lists and objects counted tenfold", path)
        elif keyword == "multipleOf":
            self._multiple = math.lcm(self._multiple, values.multiple(value, path))
            if self._multiple > MAX_MULTIPLE:
                refuse(f"the least common multiple of all multipleOf is over {MAX_MULTIPLE}", path)

    def _ref(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{place.path}.$ref"
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")) or place.renamed:
            refuse("a reference must be # or begin with #/, and stand below no $id but the first", path)
        if place.owner is not None:
            self._same.setdefault(place.owner, {})[value] = path
        if value not in self._names:
            name = self._names[value] = f"d{len(self._names)}"
            where = self._param + value[1:].replace("/", ".")
            self._defs[name] = self._schema(self._target(value, path), Place(where, place.depth, value))
        return {"$ref": f"#/$defs/{self._names[value]}"}

    def _target(self, reference: str, path: str) -> Any:
        node = self._document
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(node):
                node = node[int(key[:9])]
            else:
                refuse(f"{reference[:100]} points to nothing", path)
        return node

    def _check_loops(self) -> None:
        """Refuse a value that is said to be itself: nothing ever follows from `{"$ref": "#"}`."""
        done: set[str] = set()

        def visit(reference: str, via: frozenset[str]) -> None:
            for other, path in self._same.get(reference, {}).items():
                if other in via:
                    refuse(f"{other[:100]} refers back to itself with no property or item in between", path)
                if other not in done:
                    visit(other, via | {other})
            done.add(reference)

        for reference in self._same:
            visit(reference, frozenset([reference]))

    def _check_ends(self) -> None:
        """Refuse what refers to itself with no way out: its text would be forced on and on."""
        references = {name: reference for reference, name in self._names.items()}
        for name in endless(self._defs):
            reference = references[name]
            refuse(
                f"{reference[:100]} needs itself within itself, so that no value is ever complete",
                self._param + reference[1:].replace("/", "."),
            )

    def _some(self, keyword: str, value: Any, place: Place, *, inside: bool = False) -> list[Schema]:
        below = place.below(keyword, inside=inside)
        if not isinstance(value, list) or not value:
            refuse("this must be a list of at least one schema", below.path)
        return [self._schema(item, below.below(index, inside=inside)) for index, item in enumerate(value)]

    def _any_of(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        return {"anyOf": self._some("anyOf", value, place)}

    def _all_of(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        return {"allOf": self._some("allOf", value, place)}

    def _one_of(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        options = self._some("oneOf", value, place)
        if not disjoint(options, self._defs):
            refuse(
                "oneOf can't be enforced unless its options exclude each other, by type or by the constants of a "
                "required property; use anyOf",
                f"{place.path}.oneOf",
            )
        return {"anyOf": options}

    def _named(self, keyword: str, value: Any, place: Place, most: int) -> dict[str, Schema]:
        below = place.below(keyword)
        if not isinstance(value, dict):
            refuse("this must be an object", below.path)
        if len(value) > most:
            refuse(f"at most {most} are taken, not {len(value)}", below.path)
        return {name: self._schema(item, below.below(name)) for name, item in value.items()}

    def _properties(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        named = self._named("properties", value, place, MAX_PROPERTIES)
        return {"properties": {values.name(name, f"{place.path}.properties"): item for name, item in named.items()}}

    def _patterns(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        named = self._named("patternProperties", value, place, MAX_PATTERNS)
        path = f"{place.path}.patternProperties"
        return {"patternProperties": {ecma(name, f"{path}.{name}"): item for name, item in named.items()}}

    def _additional(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        return {"additionalProperties": self._schema(value, place.below("additionalProperties"))}

    def _items(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(value, list):
            return {"prefixItems": self._some("items", value, place, inside=True)}
        return {"items": self._schema(value, place.below("items"))}

    def _prefix_items(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(node.get("items"), list):
            refuse("a list of items means the same in older drafts: one of them must go", f"{place.path}.prefixItems")
        return {"prefixItems": self._some("prefixItems", value, place, inside=True)}

    def _additional_items(self, value: Any, place: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(node.get("items"), list):
            refuse("this means nothing without a list of items", f"{place.path}.additionalItems")
        return {"items": self._schema(value, place.below("additionalItems"))}


_NESTED: Mapping[str, Callable[[_Normalizer, Any, Place, Mapping[str, Any]], dict[str, Any]]] = {
    "$ref": _Normalizer._ref,
    "anyOf": _Normalizer._any_of,
    "allOf": _Normalizer._all_of,
    "oneOf": _Normalizer._one_of,
    "properties": _Normalizer._properties,
    "patternProperties": _Normalizer._patterns,
    "additionalProperties": _Normalizer._additional,
    "items": _Normalizer._items,
    "prefixItems": _Normalizer._prefix_items,
    "additionalItems": _Normalizer._additional_items,
}
"""Keywords with schemas inside → their method."""
