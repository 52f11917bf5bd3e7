"""Tools as a request declares them, and how it wants them used. Validated by the API; nothing here is checked again."""

from typing import Any

import msgspec

AUTO = "auto"
REQUIRED = "required"


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """The JSON schema of its arguments, an object's; empty: any object."""
    strict: bool = False


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of a request, one at least, and what the answer must do with them."""

    tools: tuple[Tool, ...]
    choice: str = AUTO
    """`auto`; `required`: at least one call; or the name of the one function to call."""
    parallel: bool = True
    """More than one call may be made."""

    def may_call(self, tool: Tool) -> bool:
        """Whether the answer may call `tool`: any, or the named one alone."""
        return self.choice in (AUTO, REQUIRED, tool.name)
