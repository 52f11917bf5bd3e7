"""Thinking before an answer: how long it may take, and grammars that begin behind it."""

import msgspec

from forgelm.ipc.messages import Constraint
from forgelm.text.reasoning import Marks
from forgelm.text.toolcalls.lark import TokenOf, Writer

EARLY_END = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)
"""Put before the closing mark of thinking that is cut short, so that the answer that follows is one. From Qwen3's
published recipe for thinking budgets."""
FORM = "response_format"
"""Stands for all fields that ask for a form: each was checked under its own name, before there was thinking."""


class Thinking(msgspec.Struct, frozen=True):
    """How one request's answer may begin."""

    marks: Marks | None
    """The template's; None for a model that doesn't think."""
    wanted: bool = False
    opened: bool = False
    """The prompt has begun it."""

    @property
    def comes_first(self) -> bool:
        """Whether the answer may begin with it."""
        return self.marks is not None and (self.wanted or self.opened)


def behind(thinking: Thinking, grammar: str, token_of: TokenOf) -> Constraint:
    """What enforces `grammar` on the answer, and leaves the thinking before it free."""
    marks = thinking.marks
    if marks is None or not thinking.comes_first:
        return Constraint(grammar)
    writer = Writer(token_of)
    close = writer.token(marks.close)
    if thinking.opened and close is not None:
        return Constraint(writer.text(f"<[{close}]> SPACE? @body", form=grammar, param=FORM), (close,))
    thought = f"{writer.until('thought', marks.close)} SPACE?"
    if not thinking.opened:
        thought = f"({writer.mark(marks.open)} {thought})?"
    return Constraint(writer.text(f"{thought} @body", form=grammar, param=FORM))
