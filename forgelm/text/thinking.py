"""Thinking before an answer: how long it may take, and grammars that begin behind it."""

import json
from typing import Any

import msgspec

from forgelm.ipc.messages import Constraint
from forgelm.text.reasoning import Marks
from forgelm.text.toolcalls.lark import TokenOf, Writer

EARLY_END = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)
"""Put before the closing mark of thinking that is cut short, so that the answer that follows is one. From Qwen3's
published recipe for thinking budgets."""


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
        return Constraint(nested(writer.text(f"<[{close}]> SPACE? @body"), grammar), (close,))
    thought = writer.until("thought", marks.close)
    if not thinking.opened:
        thought = f"({writer.mark(marks.open)} {thought})?"
    return Constraint(nested(writer.text(f"{thought} SPACE? @body"), grammar))


def nested(outer: str, body: str) -> str:
    """Both in llguidance's JSON form: `outer` refers to `body` as `@body`."""
    inner: dict[str, Any] = {"lark_grammar": body}
    rest: list[dict[str, Any]] = []
    if body.lstrip().startswith("{"):
        inner, *rest = json.loads(body)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**inner, "name": "body"}, *rest]})
