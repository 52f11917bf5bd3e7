"""Lark for strings written as they are, between two marks: of any text, or of a length, pattern or format.

No string holds the mark that ends it, nor becomes that with what stands around it: its parser would end it there.
"""

import re

from forgelm.errors import InvalidRequest
from forgelm.text.structured.limits import refuse
from forgelm.text.structured.normalize import normalize
from forgelm.text.toolcalls.lark import ANY, Writer, literal, pattern
from forgelm.text.toolcalls.schemas import Schema

BOUNDS = frozenset(("pattern", "minLength", "maxLength", "format"))
"""Keywords of a schema that say which strings are meant."""
LONGEST = 8_192
"""The longest bound of a length that can be enforced: a lexer has several states for each character, and may have only
so many."""
FORMATS = {
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    "email": r"[A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,24}",
}
"""Formats that a schema's check leaves by name → what is let through of them."""


def any_string(writer: Writer, end: str) -> str:
    """A rule for any text up to `end`, which begins with a line break; that may be left out of an empty one."""
    return writer.rule("text-value[lazy]", f"/{pattern(end[1:])}|{ANY}{pattern(end)}/")


def bounded_string(writer: Writer, name: str, schema: Schema, end: str, param: str, *, strict: bool) -> str:
    """A rule called `name` for the strings of `schema` and `end`, which begins and ends with a line break.

    What can't be enforced raises `InvalidRequest` naming `param` if `strict`, and is any text if not.
    """
    try:
        parts = _conditions({key: schema[key] for key in BOUNDS & schema.keys()}, param)
    except InvalidRequest:
        if strict:
            raise
        return any_string(writer, end)
    inner = pattern(end[:-1])
    parts += [rf"~/(?s:.*){inner}(\n(?s:.*))?/", rf"~/{inner.removeprefix(pattern(end[0]))}(\n(?s:.*))?/"]
    text = writer.rule(name.upper(), " & ".join(parts))
    return writer.rule(f"{name}[lazy]", f"{text} {literal(end)}")


def _conditions(bounds: Schema, param: str) -> list[str]:
    """Regular expressions that must all match."""
    checked = normalize({"type": "string", **bounds}, param)
    if not isinstance(checked, dict):
        refuse("no string is valid", param)
    least, most = checked.get("minLength", 0), checked.get("maxLength")
    for key in ("minLength", "maxLength"):
        if checked.get(key, 0) > LONGEST:
            refuse(f"more than {LONGEST} can't be enforced in the way this model calls tools", f"{param}.{key}")
    parts = [f"/(?s:.){{{least},{'' if most is None else most}}}/"]
    if "pattern" in checked:
        parts.append(f"/{anchored(checked['pattern'])}/")
    if "format" in checked:
        if checked["format"] not in FORMATS:
            refuse(f"the format {checked['format']!r} can't be enforced in the way this model calls tools", param)
        parts.append(f"/{FORMATS[checked['format']]}/")
    return parts


def anchored(regex: str) -> str:
    """A schema's `pattern`, which is searched for, as a regular expression for the whole text."""
    return "|".join(map(_whole, _alternatives(regex)))


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
