"""What a model's template says about thinking, applied to one request."""

from forgelm.errors import UnsupportedParameter
from forgelm.ipc.messages import Budget
from forgelm.llama.vocab import Vocabulary
from forgelm.text.reasoning import find_reasoning, opened
from forgelm.text.template import ChatTemplate
from forgelm.text.thinking import EARLY_END, Thinking

ANSWER_SHARE = 4
"""Where thinking is bounded, one token in so many of the answer's length is left to what comes after it."""


class Thinker:
    """Knows one model's marks. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        self._vocabulary = vocabulary
        self.marks = find_reasoning(template.source) if template else None
        self.close = vocabulary.special(self.marks.close) if self.marks else None
        """The closing mark's token, if it is one."""

    def of(self, opening: str, *, wanted: bool) -> Thinking:
        """How the answer to a prompt that ends with `opening` may begin."""
        return Thinking(self.marks, wanted, self.marks is not None and opened(opening, self.marks))

    def budget(self, tokens: int | None, thinking: Thinking, most: int, *, calls: str) -> Budget | None:
        """The bound that was asked for, made to leave room for the answer within its `most` tokens.

        `calls` is what begins a tool call, which ends thinking too. Raises `UnsupportedParameter` where the end of
        thinking isn't one token, so that the engine couldn't tell.
        """
        marks = thinking.marks
        if tokens is None or marks is None or not thinking.comes_first:
            return None
        special = self._vocabulary.special
        begin, close, call = special(marks.open), self.close, special(calls) if calls else None
        if close is None or begin is None:
            raise UnsupportedParameter("this model's thinking can't be bounded", param="thinking_token_budget")
        closing = tuple(
            self._vocabulary.tokenize(f"{EARLY_END}{marks.close}\n\n", add_special=False, parse_special=True)
        )
        bounded = max(1, min(tokens, most - len(closing) - max(1, most // ANSWER_SHARE)))
        ends = (close,) if call is None else (close, call)
        return Budget(bounded, ends, closing, () if thinking.opened else (begin,))
