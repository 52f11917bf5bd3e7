"""A vocabulary with grammars over it, for tests of matchers."""

from pathlib import Path

import numpy as np

from forgelm.engine.constraint import Constraints, GrammarMatcher
from forgelm.ipc.messages import Constraint
from forgelm.llama.guidance import Guidance
from forgelm.llama.vocab import Vocabulary


class Setup:
    """A vocabulary and its grammars."""

    def __init__(self, path: Path) -> None:
        self.vocabulary = Vocabulary.open(path)
        self.constraints = Constraints(lambda: Guidance(self.vocabulary))

    def open(self, grammar: str, *triggers: int) -> GrammarMatcher:
        return self.constraints.open(Constraint(grammar, triggers))

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        return list(self.vocabulary.tokenize(text, add_special=False, parse_special=special))

    def text(self, tokens: list[int]) -> str:
        return b"".join(self.vocabulary.pieces[token] for token in tokens).decode()

    def close(self) -> None:
        self.constraints.close()
        self.vocabulary.close()


def allowed(matcher: GrammarMatcher) -> set[int]:
    mask = matcher.mask()
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def take(matcher: GrammarMatcher, tokens: list[int]) -> None:
    for token in tokens:
        assert token in allowed(matcher)
        matcher.advance(token)
