"""Which guesses stay: those that are drawn anyway.

At each guessed row a token is drawn from the target's own distribution, with the random number that this place of this
answer has. A guess that is this very token stays, the first that isn't is replaced by it, and what follows goes. The
answer is thus the same with and without guesses, whatever the sampling. For a fixed guess this is also the rule of
Leviathan et al. 2023 (accept with probability p(guess), else draw from the rest); a drafting model that draws with the
same random number agrees with the target as often as their distributions let it.
"""

from collections.abc import Callable

from forgelm.engine.plan import Draw, Drawn, Matcher, MatchFailed, Span

DrawRow = Callable[[int, Draw], Drawn]
"""Draws the token that follows a row, counted from the one before the first guess."""


def verify(span: Span, draw_row: DrawRow) -> tuple[tuple[Drawn, ...], int]:
    """What was drawn for `span`, which has a draw, and how many of its rows stay.

    A token that a grammar forces isn't drawn: a guess for it is right if it is that token.
    """
    assert span.draw is not None
    draw, walk = span.draw, _Walk(span)
    drawn: list[Drawn] = []
    try:
        while True:
            drawn.append(draw_row(walk.right, draw))
            if not walk.take(drawn[-1].token):
                break
            draw = draw.then(span.ahead[: len(span.draw.tokens) + walk.right], drawn[-1].mu)
    finally:
        walk.go_back()
    return tuple(drawn), len(span.tokens) + walk.right


class _Walk:
    """Along the guesses of a span, and along its grammar."""

    def __init__(self, span: Span) -> None:
        draw = span.draw
        self.right = 0
        """Guesses that stay."""
        self._guesses: list[int] = span.guesses.tolist()
        self._matcher: Matcher | None = draw.matcher if draw is not None and self._guesses else None
        self._forces = draw is not None and draw.logprobs < 0
        self._taken = 0

    def take(self, token: int) -> bool:
        """Whether the token drawn was guessed and the one after it has to be drawn too."""
        if not self._matches(token):
            return False
        if self._matcher is None:
            return True
        try:
            return self._advance(self._matcher, token)
        except MatchFailed:
            # Whoever takes the token in meets it again.
            return False

    def go_back(self) -> None:
        """Leave the grammar as it was."""
        if self._matcher is not None and self._taken:
            self._matcher.rollback(self._taken)

    def _matches(self, token: int) -> bool:
        right = self.right < len(self._guesses) and self._guesses[self.right] == token
        self.right += right
        return right

    def _advance(self, matcher: Matcher, token: int) -> bool:
        self._step(matcher, token)
        while not matcher.finished and (forced := matcher.forced() if self._forces else ()):
            for following in forced:
                if not self._matches(following):
                    return False
                self._step(matcher, following)
        return not matcher.finished

    def _step(self, matcher: Matcher, token: int) -> None:
        matcher.advance(token)
        self._taken += 1
