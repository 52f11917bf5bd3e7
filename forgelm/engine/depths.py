"""How many tokens to guess for whom in one step: the best pace for all together. Arithmetic alone.

A step that computes guesses yields a token for each sequence and the guesses that come true, which are as many as the
sum of their chances of coming true (Leviathan et al. 2023, equation 1, for one sequence). So guesses are taken in the
order of those chances, across all sequences, and every number of them is tried, because costs needn't rise evenly
(cf. SmartSpec, Liu et al. 2024). Times are in units of the plain decode of as many sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from forgelm.engine.stepcost import Shape, StepCost

HOPED = 0.95
"""The chance of a guess that a try hopes for: if even that wouldn't pay there is nothing to try."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What could be guessed for one sequence."""

    drafter: str
    """ "": nothing."""
    gains: Sequence[float] = ()
    """The chance that at least 1, 2, … guesses come true; never rising."""
    drafting: float = 0.0
    """What each guess takes to make."""
    match: int = 0
    """What a look-up had matched for them."""
    most: int = 0
    """Guesses there may be; `gains` leaves out those that hardly ever come true."""

    def pace(self, ratios: Sequence[float], rows: int, sequences: int) -> float:
        """Tokens by time at its best depth, were it the only one; `rows` is what there is without it."""
        tokens, fastest = float(sequences), 0.0
        for count, gain in enumerate(self.gains, 1):
            tokens += gain
            fastest = max(fastest, tokens / (ratios[rows + count] + count * self.drafting))
        return fastest


@dataclass(frozen=True, slots=True)
class Terms:
    """What a choice has to keep to."""

    sequences: int
    rows: int
    """Rows without any guess."""
    most: int
    """Guesses at most, in all."""
    slack: float
    """What the step may take longer than without guesses, should all of them be wrong."""
    pace: float
    """How many times the pace without guesses it must be expected to reach."""


def best(wishes: Sequence[Wish], ratios: Sequence[float], terms: Terms) -> list[int]:
    """How many guesses each gets, in one decode: its time by rows is `ratios`, shape (> rows + most,)."""
    plain = ratios[terms.rows]
    ranked = [(gain - wish.drafting, gain, place) for place, wish in enumerate(wishes) for gain in wish.gains]
    ranked.sort(key=_worth, reverse=True)
    pace = terms.pace * terms.sequences / plain
    tokens, drafting, chosen = float(terms.sequences), 0.0, 0
    for count, (_, gain, place) in enumerate(ranked[: terms.most], 1):
        tokens += gain
        drafting += wishes[place].drafting
        seconds = ratios[terms.rows + count] + drafting
        if seconds - plain <= terms.slack and tokens > pace * seconds:
            pace, chosen = tokens / seconds, count
    counts = [0] * len(wishes)
    for _, _, place in ranked[:chosen]:
        counts[place] += 1
    return counts


def best_uniform(wishes: Sequence[Wish], seconds: Callable[[int, int], float], terms: Terms) -> list[int]:
    """The same where all who get guesses get as many: `seconds(guessing, depth)` is the time of such a step."""
    plain = seconds(0, 0)
    pace = terms.pace * terms.sequences / plain
    counts = [0] * len(wishes)
    for depth in range(1, max((len(wish.gains) for wish in wishes), default=0) + 1):
        able = [(sum(wish.gains[:depth]), place) for place, wish in enumerate(wishes) if len(wish.gains) >= depth]
        able.sort(reverse=True)
        tokens, drafting = float(terms.sequences), 0.0
        for guessing, (gain, place) in enumerate(able[: terms.most // depth], 1):
            tokens += gain
            drafting += depth * wishes[place].drafting
            taken = seconds(guessing, depth) + drafting
            if taken - plain <= terms.slack and tokens > pace * taken:
                pace = tokens / taken
                chosen = {place for _, place in able[:guessing]}
                counts = [depth * (place in chosen) for place in range(len(wishes))]
    return counts


def add_tries(
    wishes: Sequence[Wish], counts: Sequence[int], due: Sequence[int], ratios: Sequence[float], terms: Terms
) -> list[int]:
    """`counts` with a guess for each of those at the places `due`, if the terms' slack pays for that.

    All or none: were they tried one by one, each would pay for all the others' tries.
    """
    tried = list(counts)
    rows = sum(counts)
    drafting = sum(count * wish.drafting for count, wish in zip(counts, wishes, strict=True))
    for place in due:
        drafting += wishes[place].drafting
        rows += 1
        tried[place] = 1
    affordable = rows <= terms.most and ratios[terms.rows + rows] + drafting - ratios[terms.rows] <= terms.slack
    return tried if affordable else list(counts)


def add_uniform_tries(
    wishes: Sequence[Wish],
    counts: Sequence[int],
    due: Sequence[int],
    seconds: Callable[[int, int], float],
    terms: Terms,
) -> list[int]:
    """The same where all who get guesses get as many."""
    tried = list(counts)
    depth = max(counts) or 1
    guessing = sum(count > 0 for count in counts)
    drafting = sum(count * wish.drafting for count, wish in zip(counts, wishes, strict=True))
    for place in due:
        if wishes[place].most >= depth:
            drafting += depth * wishes[place].drafting
            guessing += 1
            tried[place] = depth
    affordable = guessing * depth <= terms.most and seconds(guessing, depth) + drafting - seconds(0, 0) <= terms.slack
    return tried if affordable else list(counts)


@dataclass(frozen=True, slots=True)
class Search:
    """One step's search, in one decode or with guesses in a decode of their own."""

    costs: StepCost
    ratios: Sequence[float]
    terms: Terms
    uniform: bool

    def seconds(self, guessing: int, depth: int) -> float:
        """Of two decodes, in plain steps: `guessing` sequences with as many guesses each, and the others."""
        sequences, rows = self.terms.sequences, self.terms.rows
        shape = Shape(sequences, rows + guessing * depth, guessing, guessing * (depth + 1))
        return self.costs.of(shape) / self.costs.plain(sequences)

    def best(self, wishes: Sequence[Wish]) -> list[int]:
        if self.uniform:
            return best_uniform(wishes, self.seconds, self.terms)
        return best(wishes, self.ratios, self.terms)

    def with_tries(self, wishes: Sequence[Wish], counts: Sequence[int], due: Sequence[int]) -> list[int]:
        if self.uniform:
            return add_uniform_tries(wishes, counts, due, self.seconds, self.terms)
        return add_tries(wishes, counts, due, self.ratios, self.terms)

    def hope(self, wishes: Sequence[Wish], due: Sequence[int]) -> bool:
        """Whether guesses for any of those at the places `due` would pay if nearly all of them came true."""
        hoped = list(wishes)
        for place in due:
            gains = [HOPED**count for count in range(1, wishes[place].most + 1)]
            hoped[place] = replace(wishes[place], gains=gains)
        counts = replace(self, terms=replace(self.terms, slack=inf)).best(hoped)
        return any(counts[place] for place in due)


def all_allowed(allowed: Sequence[int], rows: int) -> list[int]:
    """As many guesses as each may have, the first in line first, up to `rows` in all."""
    counts: list[int] = []
    for most in allowed:
        counts.append(min(most, rows))
        rows -= counts[-1]
    return counts


def all_allowed_uniform(allowed: Sequence[int], rows: int) -> list[int]:
    """The same where all who get guesses get as many: the depth that gives the most in all."""
    best_total, counts = 0, [0] * len(allowed)
    for depth in sorted(set(allowed) - {0}):
        places = [place for place, most in enumerate(allowed) if most >= depth][: rows // depth]
        if depth * len(places) > best_total:
            best_total = depth * len(places)
            counts = [depth * (place in places) for place in range(len(allowed))]
    return counts


def _worth(ranked: tuple[float, float, int]) -> float:
    return ranked[0]
