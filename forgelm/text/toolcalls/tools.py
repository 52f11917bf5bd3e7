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

    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called: the named one alone where one is named."""
        if self.choice in (AUTO, REQUIRED):
            return self.tools
        return tuple(tool for tool in self.tools if tool.name == self.choice)
