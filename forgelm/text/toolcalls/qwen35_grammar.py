"""Lark for the functions of Qwen 3.5's calls: every parameter at most once, the required ones all, in any order.

Of more than 64 parameters, which is what llguidance can count with, the order is the declared one.
"""

import json
from typing import Any, NamedTuple

from forgelm.text.structured import embed_schema
from forgelm.text.structured.keywords import ANNOTATIONS
from forgelm.text.structured.limits import refuse
from forgelm.text.toolcalls.lark import Writer, json_value, literal
from forgelm.text.toolcalls.qwen35_values import END
from forgelm.text.toolcalls.raw_strings import BOUNDS, any_string, bounded_string
from forgelm.text.toolcalls.schemas import Schema, branches, properties, required, resolve, types
from forgelm.text.toolcalls.tools import Tool

BITS = 64

_NAME = r"[^>\n\x00-\x1f]{1,64}"
_OF_STRINGS = BOUNDS | ANNOTATIONS | {"type", "enum", "const"}


class _Value(NamedTuple):
    """A parameter's schema, one alternative of it, and where it came from."""

    schema: Schema
    param: str
    tool: Tool


def write_function(writer: Writer, tool: Tool, param: str) -> str:
    """The body of a rule that is a call of `tool`, from `<function=` to the line break behind `</function>`.

    Raises `InvalidRequest` below `param` for what can't be enforced of a strict tool.
    """
    if tool.strict:
        embed_schema({"type": "object", **tool.parameters}, param)
    head, end = literal(f"<function={tool.name}>\n"), literal("</function>\n")
    known, needed = properties(tool.parameters), required(tool.parameters)
    for name in known:
        # There is no way to write these: the parser takes what is before them for the name.
        if ">" in name or "\n" in name:
            refuse(f"a parameter called {name[:40]!r} can't be given in the way this model calls tools", param)
    if not known:
        return f"{head} {_unknown(writer, tool)} {end}"
    values = {
        name: _parameter(writer, name, _Value(schema, f"{param}.properties.{name}", tool))
        for name, schema in known.items()
    }
    if len(values) > BITS:
        ordered = [value if name in needed else f"({value})?" for name, value in values.items()]
        return f"{head} {' '.join(ordered)} {end}"
    first = [values[name] for name in needed]
    others = [value for name, value in values.items() if name not in needed]
    return f"{head} {_any_order(writer, [*first, *others], len(needed))} {end}"


def _any_order(writer: Writer, values: list[str], needed: int) -> str:
    name = writer.fresh("arguments")
    done = f'"" %if is_ones([0:{needed}])' if needed else '""'
    more = [f"{value} {name}::set_bit({bit}) %if bit_clear({bit})" for bit, value in enumerate(values)]
    writer.rule(f"{name}::_", "\n    | ".join([done, *more]))
    return f"{name}::0x0"


def _unknown(writer: Writer, tool: Tool) -> str:
    """Parameters of a tool that declares none: whatever it doesn't refuse."""
    if tool.strict or resolve(tool.parameters, tool.parameters).get("additionalProperties") is False:
        return ""
    return f'("<parameter=" /{_NAME}/ ">\\n" {any_string(writer, END)})*'


def _parameter(writer: Writer, name: str, value: _Value) -> str:
    head = literal(f"<parameter={name}>\n")
    return writer.rule(writer.fresh("parameter"), f"{head} ({_alternatives(writer, value)})")


def _alternatives(writer: Writer, value: _Value) -> str:
    """What matches a value and its end."""
    found = [value._replace(schema=branch) for branch in branches(value.schema, value.tool.parameters)]
    written = [_branch(writer, branch) for branch in found]
    free = any_string(writer, END)
    return free if free in written else " | ".join(written)


def _branch(writer: Writer, value: _Value) -> str:
    schema, param, tool = value
    listed = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    allowed = types(schema, tool.parameters)
    if isinstance(listed, list) and listed:
        return " | ".join(literal(_raw(item) + END) for item in listed)
    if "string" in allowed:
        _check(value)
        if allowed != {"string"} or not BOUNDS & schema.keys():
            return any_string(writer, END)
        return bounded_string(writer, writer.fresh("value"), schema, END, param, strict=tool.strict)
    shared: Schema = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return f"{json_value({**schema, **shared}, param, strict=tool.strict)} {literal(END)}"


def _check(value: _Value) -> None:
    """Refuse what a strict tool says of a string that no grammar of raw text holds to."""
    unknown = sorted(value.schema.keys() - _OF_STRINGS) if value.tool.strict else []
    if unknown:
        refuse(f"{unknown[0]} can't be enforced of a string in the way this model calls tools", value.param)


def _raw(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
