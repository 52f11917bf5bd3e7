"""The grammar that an answer with tools must follow, and when it begins to.

Where a call's opening is one special token, the engine waits for that token and everything before it is free, thinking
included. Otherwise the grammar holds from the first token on, and describes the free text itself. Text alone never
holds a special token, so those of the thinking are named wherever they may come.
"""

from forgelm.ipc.messages import Constraint
from forgelm.text.reasoning import Marks
from forgelm.text.toolcalls.formats import ToolFormat
from forgelm.text.toolcalls.lark import TokenOf, Writer, pattern
from forgelm.text.toolcalls.tools import AUTO, ToolUse


def constraint(
    tools: ToolFormat,
    use: ToolUse,
    *,
    thinking_open: bool,
    marks: Marks | None,
    token_of: TokenOf,
    form: str | None = None,
) -> Constraint:
    """What enforces `use` in the format `tools`.

    `marks` are the template's thinking marks, `thinking_open` says that the prompt leaves them open, and `token_of`
    gives the id of a text that is one special token of the vocabulary. A forced call may come at once, after thinking,
    or within it. Once calls have begun nothing but calls follows. An answer without any has the `form` of that grammar;
    forced calls leave no room for one. Raises `InvalidRequest`, naming the field below
    `tools`, for what can't be enforced of a strict tool, or if all is too large.
    """
    writer = Writer(token_of)
    opening = writer.token(tools.opening)
    close = writer.token(marks.close) if marks and thinking_open else None
    writer.rule("rest", tools.rest(writer, use))
    writer.rule("calls", f"{writer.mark(tools.opening)} rest")
    if form is not None and use.choice == AUTO:
        return _or_form(writer, form, marks, thinking_open=thinking_open, opening=opening)
    if opening is not None and use.choice == AUTO:
        return Constraint(writer.text("calls"), (opening,))
    if opening is not None and close is not None:
        return Constraint(writer.text(f"calls | <[{close}]> SPACE? calls"), (close, opening))
    if use.choice == AUTO:
        return Constraint(writer.text(_free(writer, tools, marks, thinking_open)))
    return Constraint(writer.text(_forced(writer, tools, marks, thinking_open)))


def _or_form(writer: Writer, form: str, marks: Marks | None, *, thinking_open: bool, opening: int | None) -> Constraint:
    """Calls, or an answer in its form; the thinking before either is free."""
    answer = "(calls | @body)"
    if marks is None:
        return Constraint(writer.text(answer, form=form))
    close = writer.token(marks.close)
    if thinking_open and close is not None:
        ends = (close,) if opening is None else (close, opening)
        within = "" if opening is None else "calls | "
        return Constraint(writer.text(f"{within}<[{close}]> SPACE? {answer}", form=form), ends)
    thought = writer.until("thought", marks.close)
    before = f"{thought} SPACE?" if thinking_open else f"({writer.mark(marks.open)} {thought} SPACE?)?"
    return Constraint(writer.text(f"{before} {answer}", form=form))


def _free(writer: Writer, tools: ToolFormat, marks: Marks | None, thinking_open: bool) -> str:
    """Any text, but what follows an opening is a call."""
    if tools.anywhere:
        head = writer.until("head", tools.opening)
    else:
        head = writer.rule("head[lazy]", rf"/[ \t\r\n]*{pattern(tools.opening)}/")
    answer = writer.rule("answer", f"{head} rest | TEXT")
    if marks is None:
        return answer
    begin = "" if thinking_open else writer.mark(marks.open)
    return f"({begin} {writer.until('thought', marks.close)})? {answer}"


def _forced(writer: Writer, tools: ToolFormat, marks: Marks | None, thinking_open: bool) -> str:
    """Calls at once, after thinking, or within it."""
    if marks is None:
        return "calls"
    thought = writer.until("thought", marks.close)
    if not thinking_open:
        return f"calls | {writer.mark(marks.open)} {thought} SPACE? calls"
    within = f" | {writer.until('head', tools.opening)} rest" if tools.anywhere else ""
    return f"{thought} SPACE? calls{within}"
