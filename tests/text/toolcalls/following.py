"""Answers held against a constraint token by token as the engine does it, and random ones made under it."""

import random
from collections.abc import Sequence

import numpy as np

from forgelm.engine.constraint import Constraints, GrammarMatcher
from forgelm.engine.plan import MatchFailed
from forgelm.ipc.messages import Constraint
from forgelm.llama.guidance import Guidance
from forgelm.llama.vocab import Vocabulary

LONGEST = 3_000
"""Tokens of a random answer before it counts as endless."""


class Model:
    """A vocabulary, and its matchers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        guidance = Guidance(vocabulary)
        self._constraints = Constraints(lambda: guidance)

    def close(self) -> None:
        self._constraints.close()
        self.vocabulary.close()

    def tokens(self, text: str) -> list[int]:
        """The tokens of an answer, marks as special tokens where they are some."""
        return list(self.vocabulary.tokenize(text, add_special=False, parse_special=True))

    def takes(self, constraint: Constraint, text: str) -> bool:
        """Whether `text` may be generated, and the answer may end there."""
        matcher = self._constraints.open(constraint)
        try:
            for token in self.tokens(text):
                matcher.advance(token)
            if matcher.mask() is not None:
                matcher.advance(self.vocabulary.eos)
        except MatchFailed:
            return False
        return True

    def walk(self, constraint: Constraint, seed: int, phrases: Sequence[str]) -> str:
        """A random answer under `constraint`, after its first trigger.

        What no chance would hit on, such as the end of a value, comes from `phrases`: one is begun now and then, and
        gone on with as long as the grammar lets it.
        """
        draw = random.Random(seed)
        written = [self.tokens(phrase) for phrase in phrases]
        matcher = self._constraints.open(constraint)
        answer = list(constraint.triggers[-1:])
        for token in answer:
            matcher.advance(token)
        while len(answer) < LONGEST:
            if self._allows(matcher, self.vocabulary.eos) and draw.random() < 0.5:
                return self._text(answer)
            phrase = draw.choice(written) if draw.random() < 0.5 else [self._any(matcher, draw)]
            for token in phrase:
                if not self._allows(matcher, token) or token == self.vocabulary.eos:
                    break
                matcher.advance(token)
                answer.append(token)
        raise AssertionError(f"no end in {self._text(answer)[:1000]!r}")

    def _allows(self, matcher: GrammarMatcher, token: int) -> bool:
        mask = matcher.mask()
        assert mask is not None
        return bool(mask[token >> 5] >> (token & 31) & 1)

    def _any(self, matcher: GrammarMatcher, draw: random.Random) -> int:
        mask = matcher.mask()
        assert mask is not None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return int(draw.choice(allowed))

    def _text(self, tokens: list[int]) -> str:
        return self.vocabulary.pieces_of(tokens).decode()
