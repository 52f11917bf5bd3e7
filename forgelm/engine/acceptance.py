"""How likely a guess is right, for one sequence and one drafter, learned from what was drawn.

A guess counts only if all before it were right, so what is kept is the chance of one given that (Leviathan et al. 2023,
whose single rate per text becomes one for each cell): by its place in the chain for a model, whose guesses rest on its
own, and for look-ups by the length of the match, which grows as guesses come true. Each is the mean of a Beta
distribution whose old evidence fades, and starts from what the server has seen.

Beside it stands the chance that the text is now `lost`: such that next to nothing comes true. It is the state of a
hidden Markov model of two states (Rabiner 1989), so two surprises in a row are enough to stop, a few hits are enough to
go on, and a lost stretch doesn't spoil what was learned before it.
"""

from collections.abc import Sequence

MEMORY = 24.0
"""Guesses after which evidence has faded to 1/e."""
PRIOR = 4.0
"""Guesses that the server's own experience counts as."""
CAUTION = 0.9
REQUEST = 8.0
"""Guesses that one request's experience counts as at most, so that a long one doesn't speak for all."""
SERVER_MEMORY = 16 * REQUEST
LOST_CHANCE = 0.05
"""A guess's chance where the text is lost."""
_GETS_LOST = 0.01
_RETURNS = 0.1
"""Chances that this changes from one verification to the next."""
_LEAST, _MOST = 0.005, 0.995
LEAST_GAIN = 0.02
"""Guesses that come true less often than this are no longer worth counting."""

FIRST_GUESSES = {"ngram": (0.3, 0.5, 0.7, 0.85), "draft": (0.7,) * 6, "mtp": (0.7, 0.6, 0.5, 0.45, 0.4, 0.4)}
"""A new server's expectation for each cell."""
_MATCH_CELLS = (0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3)
"""Cell of a match of so many tokens: under 5, under 8, under 16, more."""


class Prior:
    """A server's experience with one drafter. Shared by its sequences."""

    def __init__(self, drafter: str) -> None:
        """`drafter`: "ngram", "draft" or "mtp"."""
        self.chained = drafter != "ngram"
        """Cells are places in a chain, not lengths of a match."""
        first = FIRST_GUESSES[drafter]
        self._right = [PRIOR * chance for chance in first]
        self._wrong = [PRIOR * (1 - chance) for chance in first]

    def chances(self) -> list[float]:
        """For each cell, how often a guess is right."""
        pairs = zip(self._right, self._wrong, strict=True)
        return [_bounded(right / (right + wrong)) for right, wrong in pairs]

    def learn(self, right: Sequence[int], wrong: Sequence[int]) -> None:
        """Take in a request's counts for each cell."""
        for cell, (hits, misses) in enumerate(zip(right, wrong, strict=True)):
            count = hits + misses
            if count:
                weight = min(1.0, REQUEST / count)
                keep = 1 - weight * count / SERVER_MEMORY
                self._right[cell] = keep * self._right[cell] + weight * hits
                self._wrong[cell] = keep * self._wrong[cell] + weight * misses


class Evidence:
    """One sequence's experience with one drafter."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._before = prior.chances()
        self._chances = list(self._before)
        cells = len(self._chances)
        self._right = [0.0] * cells
        self._wrong = [0.0] * cells
        self._hits = [0] * cells
        self._misses = [0] * cells
        self.lost = _GETS_LOST
        """The chance that the text is lost."""

    def cell(self, match: int, place: int) -> int:
        """Which cell the guess at `place`, from 0, belongs to; `match` is what a look-up had matched."""
        if self._prior.chained:
            return min(place, len(self._chances) - 1)
        return _MATCH_CELLS[min(match + place, len(_MATCH_CELLS) - 1)]

    def gains(self, match: int, most: int) -> list[float]:
        """The chance that at least so many guesses come true: for 1, 2, … at most `most`, as long as it is of note."""
        chances, lost = self._chances, self.lost
        found, astray = 1 - lost, lost
        gains: list[float] = []
        for place in range(most):
            found *= chances[self.cell(match, place)]
            astray *= LOST_CHANCE
            gains.append(found + astray)
            if found + astray < LEAST_GAIN:
                break
        return gains

    @property
    def trust(self) -> float:
        """How much of this rests on the sequence's own past, 0 … 1."""
        seen = sum(self._right) + sum(self._wrong)
        return CAUTION * seen / (seen + 2 * PRIOR)

    def observe(self, match: int, drafted: int, accepted: int) -> None:
        """`accepted` of `drafted` guesses were right; the one after them, if there was one, was wrong."""
        self.lost = self.lost * (1 - _RETURNS) + (1 - self.lost) * _GETS_LOST
        for place in range(accepted):
            self._learn(self.cell(match, place), right=True)
        if accepted < drafted:
            self._learn(self.cell(match, accepted), right=False)
        self._refresh()

    def _learn(self, cell: int, *, right: bool) -> None:
        chance = self._chances[cell]
        found = (1 - self.lost) * (chance if right else 1 - chance)
        astray = self.lost * (LOST_CHANCE if right else 1 - LOST_CHANCE)
        self.lost = min(astray / (found + astray), _MOST)
        # What is seen while lost says nothing of how well guesses do otherwise.
        weight = 1 - self.lost
        keep = 1 - weight / MEMORY
        self._right[cell] = keep * self._right[cell] + weight * right
        self._wrong[cell] = keep * self._wrong[cell] + weight * (not right)
        self._hits[cell] += right
        self._misses[cell] += not right

    def _refresh(self) -> None:
        quality = 1.0
        for cell, before in enumerate(self._before):
            expected = min(before * quality, _MOST)
            right, wrong = self._right[cell], self._wrong[cell]
            # What was expected counts less the more was seen, or it would hold the estimate back for ever.
            weight = PRIOR * max(1 - (right + wrong) / MEMORY, _LEAST)
            chance = _bounded((right + weight * expected) / (right + wrong + weight))
            self._chances[cell] = chance
            # A later guess of a model that does better than usual is better than usual too.
            quality = chance / before if self._prior.chained else 1.0

    def teach(self) -> None:
        """Give what was seen to the server's experience. Once, at the sequence's end."""
        self._prior.learn(self._hits, self._misses)


def _bounded(chance: float) -> float:
    return min(max(chance, _LEAST), _MOST)
