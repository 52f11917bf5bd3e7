"""What tests on Qwen3.5's vocabulary and template share: its markup, tools, and requests that force the noise of random
weights into them."""

import json
from typing import Any

import jsonschema

from forgelm.llama.vocab import Vocabulary
from tests.processes.asking import ZONE, Choice

THINK: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
THINKING, ANSWERING = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
CUT_SHORT = "limited time by the user"
"""Of the words that end thinking whose budget is spent."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"type": "array", "items": {"enum": ["C", "F"]}, "maxItems": 2},
        "exact": {"type": "boolean"},
    },
    "required": ["days", "city"],
    "additionalProperties": False,
}
SCHEMAS = {"get_time": ZONE, "get_weather": WEATHER}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "get_time"}}
FORM: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
RESPONSE = {"type": "json_schema", "json_schema": {"name": "form", "schema": {**FORM, "additionalProperties": False}}}


def bias(vocabulary: Vocabulary, *marks: str) -> dict[str, float]:
    """Draws these special tokens wherever they are allowed."""
    return {str(vocabulary.special(mark)): 100.0 for mark in marks}


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calling(zone: str = "UTC", **fields: Any) -> dict[str, Any]:
    function = {"name": "get_time", "arguments": json.dumps({"zone": zone})}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}], **fields}


def called(zone: str = "UTC") -> str:
    return f"<tool_call>\n<function=get_time>\n<parameter=zone>\n{zone}\n</parameter>\n</function>\n</tool_call>"


def result(content: str = "12:00") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def resulted(content: str = "12:00") -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


def check_calls(choice: Choice) -> None:
    """Each call is of a tool and valid under its schema; ids are unique."""
    assert choice.calls
    for call in choice.calls:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])
    assert len({call.id for call in choice.calls}) == len(choice.calls)
