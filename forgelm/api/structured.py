"""Which form an answer must have: one grammar out of all the fields that clients know for it."""

import re
from collections.abc import Callable
from typing import Any

from forgelm.api.requests import STRUCTURED, StructuredFields
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.text import structured

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_NEWER = {"json": "guided_json", "regex": "guided_regex", "choice": "guided_choice", "grammar": "guided_grammar"}


def answer_grammar(request: StructuredFields) -> str | None:
    """The grammar that the answer must follow; None where it is free.

    Raises `InvalidRequest` naming the field for what can't be enforced, and for two forms at once.
    """
    asked = [name for name in STRUCTURED if _asks(name, getattr(request, name))]
    if len(asked) > 1:
        raise InvalidRequest(f"{asked[0]} and {asked[1]} can't both be followed: send one", param=asked[1])
    if not asked:
        return None
    name = asked[0]
    value = getattr(request, name)
    if name == "structured_outputs":
        return _newer(value)
    return _READERS[name](value, name)


def asked_form(request: StructuredFields) -> str | None:
    """The field that asks for a form, if any does."""
    return next((name for name in STRUCTURED if _asks(name, getattr(request, name))), None)


def _asks(name: str, value: Any) -> bool:
    # As a schema `{"type": "text"}` is a mistake, to be refused.
    return value is not None and not (name == "response_format" and value.get("type") == "text")


def _newer(value: dict[str, Any]) -> str | None:
    asked = [key for key, inner in value.items() if inner is not None and not (key == "json_object" and inner is False)]
    if len(asked) != 1:
        raise InvalidRequest("structured_outputs must hold exactly one form", param="structured_outputs")
    key, param = asked[0], f"structured_outputs.{asked[0]}"
    if key == "json_object":
        if value[key] is not True:
            raise InvalidRequest(f"{param} must be true or false", param=param)
        return structured.json_object(param)
    if key not in _NEWER:
        raise UnsupportedParameter(f"structured_outputs can't hold {key[:40]!r}", param=param)
    inner = value[key]
    if key in ("regex", "grammar") and not isinstance(inner, str):
        raise InvalidRequest(f"{param} must be text", param=param)
    return _READERS[_NEWER[key]](inner, param)


def _choice(value: Any, param: str) -> str:
    if not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise InvalidRequest(f"{param} must be a list of texts", param=param)
    return structured.choice(value, param)


def _json(value: Any, param: str) -> str:
    if isinstance(value, str):
        raise InvalidRequest(f"{param} must be a JSON schema, not a text that holds one", param=param)
    return structured.json_schema(value, param)


def _grammar(value: str, param: str) -> str:
    """vLLM's field takes both kinds; GBNF's rules have `::=`, Lark's `:`."""
    return structured.gbnf(value, param) if _GBNF_RULE.search(value) else structured.lark(value, param)


_READERS: dict[str, Callable[[Any, str], str | None]] = {
    "response_format": structured.response_format,
    "guided_json": _json,
    "json_schema": _json,
    "guided_regex": structured.regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "grammar": structured.gbnf,
}
