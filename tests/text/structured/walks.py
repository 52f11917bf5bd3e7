"""Random answers: walks over a grammar's masks on a real vocabulary, which turn to the end after some length."""

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forgelm.engine.constraint import Constraints, GrammarMatcher
from forgelm.ipc.messages import Constraint
from forgelm.llama.guidance import Guidance
from forgelm.llama.vocab import Vocabulary

MOST = 3000
"""Tokens after which a walk counts as endless."""


class Walker:
    """A vocabulary, and what of it ends things."""

    def __init__(self, path: Path) -> None:
        self.vocabulary = Vocabulary.open(path)
        self.constraints = Constraints(lambda: Guidance(self.vocabulary))
        self._ends = self.vocabulary.end_tokens()
        self._pieces = [self.vocabulary.pieces[token] for token in range(self.vocabulary.size)]
        self._closing = self._ranks(self._pieces)

    def close(self) -> None:
        self.constraints.close()
        self.vocabulary.close()

    def _ranks(self, pieces: list[bytes]) -> npt.NDArray[np.int8]:
        """How much a token brings an answer to its end."""
        ranks = np.zeros(len(pieces), dtype=np.int8)
        for token, piece in enumerate(pieces):
            if piece == b'"':
                ranks[token] = 4
            elif piece and not piece.strip(b'"]}'):
                ranks[token] = 3
            elif piece and not piece.strip(b"null[]"):
                ranks[token] = 2
            elif b"{" not in piece and b"[" not in piece:
                ranks[token] = 1
        ranks[list(self._ends)] = 5
        return ranks

    def walk(self, grammar: str, seed: int, free: int, hints: str = "") -> str:
        """A whole answer: `free` tokens at random, then towards the end, by way of pieces of `hints` among others."""
        numbers = random.Random(seed)
        hint = hints.encode()
        hinted = [token for token, piece in enumerate(self._pieces) if piece.strip(b"{[") and piece in hint]
        matcher = self.constraints.open(Constraint(grammar))
        tokens: list[int] = []
        while len(tokens) < MOST:
            forced = matcher.forced() if numbers.random() < 0.5 else ()
            for token in forced or (self._draw(matcher, numbers, hinted if len(tokens) >= free else None),):
                if token in self._ends:
                    return b"".join(self._pieces[token] for token in tokens).decode()
                matcher.advance(token)
                tokens.append(token)
        raise AssertionError(f"no end after {MOST} tokens")

    def _draw(self, matcher: GrammarMatcher, numbers: random.Random, hinted: list[int] | None) -> int:
        mask = matcher.mask()
        assert mask is not None
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        assert allowed.size
        if hinted is not None:
            ranks = self._closing[allowed]
            allowed = allowed[ranks == ranks.max()]
            others = [token for token in hinted if bits[token]]
            if others and ranks.max() < 4 and numbers.random() < 0.5:
                # Long pieces lead through words, short ones to a letter that is missing.
                power = numbers.choice((3, 0, -3))
                return numbers.choices(others, [len(self._pieces[token]) ** power for token in others])[0]
        return int(numbers.choice(allowed))
