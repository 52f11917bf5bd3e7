"""JSON answers: from a JSON Schema, or from `response_format`, to a grammar.

Answers are written as Python's `json.dumps` does: one space after a comma and a colon, nothing else. With free white
space small models write line breaks until their tokens run out, and nothing is forced: as it is, the engine appends
the names of properties, commas and brackets without computing a choice. Texts hold no `\\u` escapes, so that each can
be written in one way alone: lengths, patterns and "any other property" then mean what they say.
"""

import json
from typing import Any

from forgelm.text.structured.limits import check_size, compile_once, refuse
from forgelm.text.structured.normalize import normalize

_WRITTEN = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}


def json_schema(schema: Any, param: str) -> str:
    """A grammar of the JSON texts valid under `schema`. Raises `InvalidRequest` with the path below `param`."""
    return compile_once(_grammar(_body(schema, param)), param)


def embed_schema(schema: Any, param: str) -> str:
    """The body of a Lark `%json` that means `schema`, for a grammar around it. Raises `InvalidRequest`."""
    body = _body(schema, param)
    compile_once(_grammar(body), param)
    return body


def json_object(param: str) -> str:
    """A grammar of all JSON objects."""
    return json_schema({"type": "object"}, param)


def response_format(value: Any, param: str) -> str | None:
    """The grammar of OpenAI's `response_format`: `text` (None), `json_object` or `json_schema`.

    A `json_object` may have a `schema`: how llama-server and others take one.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        wanted = value.get("schema")
        return json_object(param) if wanted is None else json_schema(wanted, f"{param}.schema")
    if kind != "json_schema":
        refuse("this must be an object whose type is text, json_object or json_schema", f"{param}.type")
    wrapper = value.get("json_schema")
    if not isinstance(wrapper, dict) or "schema" not in wrapper:
        refuse("a schema is needed", f"{param}.json_schema.schema")
    return json_schema(wrapper["schema"], f"{param}.json_schema.schema")


def _grammar(body: str) -> str:
    return f'{{"grammars": [{{"json_schema": {body}}}]}}'


def _body(schema: Any, param: str) -> str:
    """The schema as llguidance's compiler takes it, with how answers are written."""
    try:
        # Surrogate halves pass here, to be refused with their path.
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        refuse(f"this can't be read as JSON: {error}", param)
    check_size(text, param)
    written = normalize(schema, param)
    if written is False:
        refuse("nothing is valid under false", param)
    options = {"x-guidance": _WRITTEN}
    return json.dumps({**options, **written} if isinstance(written, dict) else options, ensure_ascii=False)
