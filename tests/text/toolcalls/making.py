"""Random calls, and texts made of what parsers look for."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from forgelm.text.toolcalls.tools import Tool

MARKUP = (
    "<tool_call>", "</tool_call>", "<function=look>", "</function>", "<parameter=text>", "</parameter>", "<think>",
    "</think>", "[TOOL_CALLS]", "[ARGS]", '{"name": "look", "arguments": {', "<", "</", "[", '"', "\\", "{", "}",
    "\\u12",
)  # fmt: skip
WORDS = ("a", " ", "\n", "\t", "é", "🙂", "\x07", "null", "True", "12", ",", ": ", "'")

texts = st.lists(st.one_of(st.sampled_from(MARKUP + WORDS), st.text(max_size=5)), max_size=8).map("".join)
"""Anything, marks of every format included."""

words = st.lists(st.sampled_from(("a", " ", "\n", "é", "<", "b>", "🙂", "</", "12")), max_size=8).map("".join)
"""Text that holds no whole mark."""

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)

LOOK = Tool(
    "look",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "deep": {"type": "object"},
            "list": {"type": "array"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "free": {},
        },
        "required": ["text"],
    },
)
LOOK_ON = Tool("look_on")
TOOLS = (LOOK, LOOK_ON)

objects = st.dictionaries(texts, values, max_size=4)
calls = st.lists(st.tuples(st.sampled_from(("look", "look_on")), objects), min_size=1, max_size=3)

writers: st.SearchStrategy[Callable[[Any], str]] = st.sampled_from(
    (
        partial(json.dumps, ensure_ascii=False),
        partial(json.dumps, ensure_ascii=True),
        partial(json.dumps, ensure_ascii=False, indent=2),
        partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    )
)
"""Ways to write JSON."""
