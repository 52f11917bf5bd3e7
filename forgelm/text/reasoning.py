"""Where a model's thinking begins and ends: the marks of a template, and whether a prompt has begun it already.

Knows nothing of tokens or of what is thought.
"""

import msgspec


class Marks(msgspec.Struct, frozen=True):
    """What stands around a model's thinking, as text without the whitespace beside it."""

    open: str
    close: str


KNOWN = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<mm:think>", "</mm:think>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<thinking>", "</thinking>"),
)
"""Pairs that published templates write. A template counts as thinking when it names the closing mark."""


def find_reasoning(template_source: str) -> Marks | None:
    """The marks that a chat template writes around thinking; None for a template that knows none."""
    for marks in KNOWN:
        if marks.close in template_source:
            return marks
    return None


def opened(prompt_text: str, marks: Marks) -> bool:
    """Whether a rendered prompt leaves the thinking open: its end is the opening mark, whitespace aside.

    Only the end counts. A user may write an opening mark too, but never the prompt's last words.
    """
    return prompt_text.rstrip().endswith(marks.open)
