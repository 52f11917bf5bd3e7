"""Tools for templates that know none: told in the system message, called in Hermes' markup, and as text in the history.

The model wasn't trained for it, so the message shows the markup, and a grammar holds it to that once a call begins.
"""

import json
from collections.abc import Sequence
from typing import Any

from forgelm.text.toolcalls.hermes import CLOSE, OPEN, Hermes
from forgelm.text.toolcalls.tools import Tool

RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"

INTRODUCTION = """# Tools

You may call functions to answer. They are described here as JSON, one a line:
<tools>
{tools}
</tools>

To call one, answer with its name and arguments as JSON between tags, and nothing after them:
{open}
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
{close}
The result then comes between {result_open} and {result_close}. If no function helps, answer without calling any."""


class Generic(Hermes):
    """The format, for templates that know nothing of tools."""

    name = "generic"
    native = False

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        told = introduction(tools)
        plain = [_plain(message) for message in messages]
        if plain and plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{told}"}
        else:
            plain.insert(0, {"role": "system", "content": told})
        return _joined(plain)


def introduction(tools: Sequence[Tool]) -> str:
    """What the system message says of `tools`."""
    lines = "\n".join(_described(tool) for tool in tools)
    return INTRODUCTION.format(tools=lines, open=OPEN, close=CLOSE, result_open=RESULT_OPEN, result_close=RESULT_CLOSE)


def _described(tool: Tool) -> str:
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return json.dumps({key: value for key, value in told.items() if value}, ensure_ascii=False)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"{RESULT_OPEN}\n{content}\n{RESULT_CLOSE}"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    blocks = "\n".join(_block(call["function"]) for call in calls)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": f"{content}\n\n{blocks}" if content else blocks}


def _block(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function.get("arguments") or {}}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that follow each other are one message, as those of parallel calls are."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last and _is_result(last) and _is_result(message):
            joined[-1] = {**last, "content": f"{last['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def _is_result(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return message["role"] == "user" and isinstance(content, str) and content.startswith(RESULT_OPEN)
