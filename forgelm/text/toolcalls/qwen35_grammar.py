"""Lark for the functions of Qwen 3.5's calls: every parameter at most once, the required ones all, in any order.

Of more than 64 parameters, which is what llguidance can count with, the order is the declared one.
"""

import json
import re
from typing import Any

import llguidance

from forgelm.text.toolcalls.lark import ANY, Writer, json_value, literal, pattern
from forgelm.text.toolcalls.qwen35_values import END
from forgelm.text.toolcalls.schemas import Schema, branches, properties, required, resolve, types
from forgelm.text.toolcalls.tools import Tool

BITS = 64
LONGEST = 8_192
"""The longest bound of a string's length that is enforced: a lexer has several states for each character, and may have
so many. Longer ones are left to the limit of tokens."""

_BEGIN, _CLOSE = END.removeprefix("\n"), pattern(END)
_NAME = r"[^>\n\x00-\x1f]{1,64}"


def write_function(writer: Writer, index: int, tool: Tool) -> str:
    """The body of a rule that is a call of `tool`, from `<function=` to the line break behind `</function>`."""
    head, end = literal(f"<function={tool.name}>\n"), literal("</function>\n")
    known, needed = properties(tool.parameters), required(tool.parameters)
    if not known:
        return f"{head} {_unknown(writer, tool)} {end}"
    values = {name: _parameter(writer, f"{index}-{at}", name, tool) for at, name in enumerate(known)}
    if len(values) > BITS:
        ordered = [value if name in needed else f"({value})?" for name, value in values.items()]
        return f"{head} {' '.join(ordered)} {end}"
    first = [values[name] for name in needed]
    others = [value for name, value in values.items() if name not in needed]
    return f"{head} {_any_order(writer, index, [*first, *others], len(needed))} {end}"


def _any_order(writer: Writer, index: int, values: list[str], needed: int) -> str:
    name = f"arguments-{index}"
    done = f'"" %if is_ones([0:{needed}])' if needed else '""'
    more = [f"{value} {name}::set_bit({bit}) %if bit_clear({bit})" for bit, value in enumerate(values)]
    writer.rule(f"{name}::_", "\n    | ".join([done, *more]))
    return f"{name}::0x0"


def _unknown(writer: Writer, tool: Tool) -> str:
    """Parameters of a tool that declares none: whatever it doesn't refuse."""
    if tool.strict or resolve(tool.parameters, tool.parameters).get("additionalProperties") is False:
        return ""
    return f'("<parameter=" /{_NAME}/ ">\\n" {_free(writer)})*'


def _parameter(writer: Writer, number: str, name: str, tool: Tool) -> str:
    schema = properties(tool.parameters)[name]
    value = _value(writer, f"value-{number}", schema, tool)
    return writer.rule(f"parameter-{number}", f"{literal(f'<parameter={name}>{chr(10)}')} ({value})")


def _value(writer: Writer, name: str, schema: Schema, tool: Tool) -> str:
    """What matches a value and its end."""
    found = list(branches(schema, tool.parameters))
    if any(_is_free(branch) for branch in found):
        return _free(writer)
    return " | ".join(_branch(writer, f"{name}-{at}", branch, tool) for at, branch in enumerate(found))


def _is_free(branch: Schema) -> bool:
    """Any text is a value."""
    allowed = types(branch, {})
    return "string" in allowed and not ({"enum", "const", "pattern", "minLength", "maxLength"} & branch.keys())


def _free(writer: Writer) -> str:
    return writer.rule("text-value[lazy]", f"/{pattern(_BEGIN)}|{ANY}{_CLOSE}/")


def _branch(writer: Writer, name: str, branch: Schema, tool: Tool) -> str:
    listed = branch.get("enum") if "enum" in branch else [branch["const"]] if "const" in branch else None
    if isinstance(listed, list):
        return " | ".join(literal(_raw(value) + END) for value in listed)
    if types(branch, {}) == {"string"}:
        return _bounded(writer, name, branch, tool)
    shared: Schema = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return f"{json_value({**branch, **shared}, strict=tool.strict)} {literal(END)}"


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bounded(writer: Writer, name: str, branch: Schema, tool: Tool) -> str:
    """A string of a certain length or pattern. It can't hold its own end, nor become that with what follows it."""
    least, most = min(branch.get("minLength", 0), LONGEST), branch.get("maxLength", "")
    parts = [f"/(?s:.){{{least},{most if most and most <= LONGEST else ''}}}/"]
    if "pattern" in branch:
        parts += _matching(branch["pattern"], tool)
    inner = pattern(END.removesuffix("\n"))
    parts += [f"~/(?s:.*){inner}(\\n(?s:.*))?/", f"~/{pattern(_BEGIN.rstrip())}(\\n(?s:.*))?/"]
    text = writer.rule(name.upper(), " & ".join(parts))
    return writer.rule(f"{name}[lazy]", f"{text} {literal(END)}")


def _matching(regex: str, tool: Tool) -> list[str]:
    try:
        return [f"/{anchored(regex)}/"]
    except ValueError as error:
        if tool.strict:
            raise ValueError(f"tool {tool.name!r}: the pattern {regex!r} can't be enforced: {error}") from error
        return []


def anchored(regex: str) -> str:
    """A schema's `pattern`, which is searched for, as a regular expression for the whole text.

    Raises `ValueError` for one that llguidance doesn't know (look-around, anchors within).
    """
    whole = "|".join(map(_whole, _alternatives(regex)))
    found = str(llguidance.regex_to_lark(whole, "dw"))
    failed, said = llguidance.LLMatcher.validate_grammar_with_warnings(f"start: /{found}/")
    if failed:
        raise ValueError("; ".join(said))
    return found


def _whole(regex: str) -> str:
    start = "" if regex.startswith("^") else "(?s:.*)"
    end = "" if re.search(r"(?<!\\)(\\\\)*\$$", regex) else "(?s:.*)"
    inner = regex.removeprefix("^")
    return f"{start}({inner if end else inner[:-1]}){end}"


def _alternatives(regex: str) -> list[str]:
    """`regex` cut at the bars that stand in no group and no class."""
    parts, depth, start, at, in_class = [], 0, 0, 0, False
    while at < len(regex):
        char = regex[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(regex[start:at])
            start = at + 1
        at += 1
    return [*parts, regex[start:]]
