"""The formats in which models call tools, and which one a chat template speaks."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from forgelm.text.output import CallParser
from forgelm.text.toolcalls.generic import Generic
from forgelm.text.toolcalls.hermes import Hermes
from forgelm.text.toolcalls.lark import Writer
from forgelm.text.toolcalls.llama3 import Llama3
from forgelm.text.toolcalls.mistral import Mistral
from forgelm.text.toolcalls.qwen35 import Qwen35
from forgelm.text.toolcalls.tools import Tool, ToolUse


class ToolFormat(Protocol):
    """How tools are told to a model, how it calls them, and how it is held to that. Without state."""

    @property
    def name(self) -> str:
        """What users choose it by."""
        ...

    @property
    def opening(self) -> str:
        """The text that begins every call of a grammar."""
        ...

    @property
    def anywhere(self) -> bool:
        """Whether a call may begin after other text, and not only where the answer does."""
        ...

    @property
    def native(self) -> bool:
        """Whether the template is given the tools. Otherwise `prepare` tells them in the messages."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that must be shown even where they are control tokens, or the parser doesn't see them."""
        ...

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """Reads calls of `tools`."""
        ...

    def prepare(self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """Plain messages, as `normalise` leaves them, as the format writes their calls and results."""
        ...

    def rest(self, writer: Writer, use: ToolUse) -> str:
        """Add rules to a grammar; what matches calls from behind the first one's opening on, to the last one's end."""
        ...


NAMES = ("qwen35", "hermes", "llama3", "mistral", "generic")
"""What `choose_format` takes."""


def choose_format(template_source: str, override: str = "") -> ToolFormat:
    """The format of a chat template, or the one named by `override`.

    Raises `ValueError` for a name that isn't one.
    """
    match override or _speaks(template_source):
        case "qwen35":
            return Qwen35()
        case "hermes":
            return Hermes()
        case "llama3":
            return Llama3()
        case "mistral":
            return Mistral(template_source)
        case "generic":
            return Generic()
        case other:
            raise ValueError(f"{other!r} is no tool format; there are {', '.join(NAMES)}")


def _speaks(template: str) -> str:
    if "tools" not in template:
        return "generic"
    if all(part in template for part in ("<tool_call>", "<function=", "<parameter=")):
        return "qwen35"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    # Written in JSON, perhaps with quotes escaped; several formats use the same mark for other things.
    if "<tool_call>" in template and "<tool_calls>" not in template and re.search(r'arguments\\?": ', template):
        return "hermes"
    if '"parameters": ' in template and "<|start_header_id|>" in template:
        return "llama3"
    return "generic"
