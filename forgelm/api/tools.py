"""A request's tools: checked, and what the answer must do with them."""

import re
from typing import Any

import msgspec

from forgelm.api.requests import ChatRequest, FunctionDefinition
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.ipc.envelope import mistyped
from forgelm.text.structured import embed_schema
from forgelm.text.toolcalls.tools import AUTO, REQUIRED, Tool, ToolUse

MAX_TOOLS = 512
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
NONE = "none"


def tool_use(request: ChatRequest) -> ToolUse | None:
    """The tools that may be called; None where none may. Raises `InvalidRequest` naming the field."""
    definitions = request.tools or []
    if len(definitions) > MAX_TOOLS:
        raise InvalidRequest(f"at most {MAX_TOOLS} tools are taken, not {len(definitions)}", param="tools")
    tools = tuple(_tool(definition, f"tools[{index}]") for index, definition in enumerate(definitions))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"two tools are called {name!r}", param=f"tools[{index}].function.name")
    choice = _choice(request.tool_choice, names)
    if choice == NONE or not tools:
        return None
    # A tool that is named is called exactly once, as OpenAI has it.
    parallel = request.parallel_tool_calls is not False and choice in (AUTO, REQUIRED)
    use = ToolUse(tools, choice, parallel)
    _check_enforced(use)
    return use


def _tool(definition: dict[str, Any], at: str) -> Tool:
    if definition.get("type", "function") != "function":
        raise UnsupportedParameter(
            f"{at}.type is {str(definition['type'])[:40]!r}: only functions are served", param=f"{at}.type"
        )
    try:
        function = msgspec.convert(definition.get("function"), FunctionDefinition)
    except msgspec.ValidationError as error:
        raise mistyped(error, f"{at}.function") from None
    if not NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{at}.function.name must be 1 to 128 letters, digits or any of _ . : / -", param=f"{at}.function.name"
        )
    parameters = function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{at}.function.parameters must be the schema of an object", param=f"{at}.function.parameters"
        )
    _check_parameters(parameters, f"{at}.function.parameters")
    return Tool(function.name, function.description or "", parameters, function.strict is True)


def _check_parameters(parameters: dict[str, Any], at: str) -> None:
    """What says which parameters there are must say it, strict or not; what they may hold is the grammars' business."""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not (isinstance(properties, dict) and all(isinstance(inner, dict | bool) for inner in properties.values())):
        raise InvalidRequest(f"{at}.properties must be an object of schemas", param=f"{at}.properties")
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise InvalidRequest(f"{at}.required must be a list of names", param=f"{at}.required")


def _choice(choice: str | dict[str, Any] | None, names: list[str]) -> str:
    match choice:
        case None:
            return AUTO
        case "auto" | "none":
            return choice
        case "required" | "any":
            wanted = REQUIRED
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if name not in names:
                raise InvalidRequest(f"tool_choice names {name[:80]!r}, which is no tool here", param="tool_choice")
            return name
        case _:
            raise InvalidRequest(
                'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}',
                param="tool_choice",
            )
    if not names:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    return wanted


def _check_enforced(use: ToolUse) -> None:
    """What a strict tool's schema says is enforced to the letter, or refused."""
    for index, tool in enumerate(use.tools):
        if tool.strict:
            embed_schema(tool.parameters, f"tools[{index}].function.parameters")
