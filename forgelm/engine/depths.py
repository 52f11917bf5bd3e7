"""How many tokens to guess for whom in one step: the best pace for all together. Arithmetic alone.

A step that computes guesses yields a token for each sequence and the guesses that come true, which are as many as the
sum of their chances of coming true (Leviathan et al. 2023, equation 1, for one sequence). So guesses are taken in the
order of those chances, across all sequences, and every number of them is tried, because costs needn't rise evenly
(cf. SmartSpec, Liu et al. 2024). Times are in units of the plain decode of as many sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from forgelm.engine.stepcost import Shape, StepCost

HOPED = 0.95
"""The chance of a guess that a try hopes for: if even that wouldn't pay there is nothing to try."""

_FEWER = 0.75
"""Where guesses are more than all can bear this part of them is looked at next: to try each number would take long."""


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
    trust: float = 0.0
    """The part of its expected gain that it may be held to, 0 … 1."""

    def pace(self, ratios: Sequence[float], rows: int, sequences: int) -> float:
        """Tokens by time at its best depth, were it the only one; `rows` is what there is without it."""
        tokens, fastest = float(sequences), 0.0
        for count, gain in enumerate(self.gains, 1):
            tokens += gain
            fastest = max(fastest, tokens / (ratios[rows + count] + count * self.drafting))
        return fastest


@dataclass(frozen=True, slots=True)
class Search:
    """One step's search."""

    costs: StepCost
    sequences: int
    rows: int
    """Rows without any guess."""
    most: int
    """Guesses at most, in all."""
    rooms: Sequence[float]
    """For each sequence, what the step may take longer than without guesses if it gains nothing."""
    overdraft: float
    """What it may take longer than that for the sake of what the sequence is expected to gain."""
    uniform: bool
    """All who get guesses get as many, in a decode of their own."""

    @property
    def ratios(self) -> Sequence[float]:
        return self.costs.ratios(self.sequences, self.rows + self.most)

    def best(self, wishes: Sequence[Wish], pace: float) -> list[int]:
        """How many guesses each gets, if together they reach `pace` times what there is without any."""
        return self._best_uniform(wishes, pace) if self.uniform else self._best(wishes, pace)

    def _best(self, wishes: Sequence[Wish], pace: float) -> list[int]:
        ratios, rows = self.ratios, self.rows
        plain = ratios[rows]
        ranked = [(gain - wish.drafting, gain, place) for place, wish in enumerate(wishes) for gain in wish.gains]
        ranked.sort(key=_worth, reverse=True)
        tokens, drafting = float(self.sequences), 0.0
        slowest = pace * tokens / plain
        most = min(self.rooms) + self.overdraft
        better: list[tuple[float, int, float]] = []
        for count, (_, gain, place) in enumerate(ranked[: self.most], 1):
            tokens += gain
            drafting += wishes[place].drafting
            seconds = ratios[rows + count] + drafting
            if tokens > slowest * seconds and seconds - plain <= most:
                better.append((tokens / seconds, count, drafting))
        bearable = self.most
        for _, count, drafting in sorted(better, reverse=True):
            if count > bearable:
                continue
            counts = [0] * len(wishes)
            for _, _, place in ranked[:count]:
                counts[place] += 1
            if self._lost(self._shape(0, count)) + drafting <= self._room(wishes, counts, plain):
                return counts
            bearable = int(count * _FEWER)
        return [0] * len(wishes)

    def _room(self, wishes: Sequence[Wish], counts: Sequence[int], plain: float) -> float:
        """What so many guesses may take, for the sake of the one that can bear least."""
        triples = zip(self.rooms, wishes, counts, strict=True)
        room = min(max(room, 0.0) + wish.trust * sum(wish.gains[:count]) * plain for room, wish, count in triples)
        return min(room, min(self.rooms) + self.overdraft)

    def _best_uniform(self, wishes: Sequence[Wish], pace: float) -> list[int]:
        costs = self.costs
        unit = costs.plain(self.sequences)
        plain = costs.seconds(self.sequences, self.rows) / unit
        slowest = pace * self.sequences / plain
        most = min(self.rooms) + self.overdraft
        deepest = max((len(wish.gains) for wish in wishes), default=0)
        sums = [(0.0, *accumulate(wish.gains)) for wish in wishes]
        better: list[tuple[float, int, int]] = []
        for guessing in range(1, sum(bool(wish.gains) for wish in wishes) + 1):
            others = costs.seconds(self.sequences - guessing, self.rows - guessing) / unit
            ratios = costs.ratios(guessing, guessing * (deepest + 1))
            apart = costs.plain(guessing) / unit
            for depth in range(1, min(deepest, self.most // guessing) + 1):
                able = _ablest(wishes, sums, depth, guessing)
                if len(able) < guessing:
                    break
                tokens = self.sequences + sum(sums[place][depth] for place in able)
                drafting = depth * sum(wishes[place].drafting for place in able)
                seconds = apart * ratios[guessing * (depth + 1)] + others + drafting
                if tokens > slowest * seconds and seconds - plain <= most:
                    better.append((tokens / seconds, depth, guessing))
        bearable = self.most
        for _, depth, guessing in sorted(better, reverse=True):
            if depth * guessing > bearable:
                continue
            able = _ablest(wishes, sums, depth, guessing)
            counts = [depth * (place in able) for place in range(len(wishes))]
            drafting = _drafting(wishes, counts)
            if self._lost(self._shape_of(counts)) + drafting <= self._room(wishes, counts, plain):
                return counts
            bearable = int(depth * guessing * _FEWER)
        return [0] * len(wishes)

    def with_tries(self, wishes: Sequence[Wish], counts: Sequence[int], due: Sequence[int]) -> tuple[list[int], float]:
        """`counts` with guesses for each of those at the places `due` as well, and what that takes longer.

        All or none: were they tried one by one, each would pay for all the others' tries. None can be afforded:
        `counts` as they are, and 0.
        """
        tried = list(counts)
        depth = (max(counts) or 1) if self.uniform else 1
        for place in due:
            tried[place] = depth if wishes[place].most >= depth else 0
        before, after = self._shape_of(counts), self._shape_of(tried)
        if sum(tried) > self.most or self._lost(after) + _drafting(wishes, tried) > min(self.rooms):
            return list(counts), 0.0
        more = _drafting(wishes, tried) - _drafting(wishes, counts)
        return tried, self._seconds(after) - self._seconds(before) + more

    def hope(self, wishes: Sequence[Wish], due: Sequence[int]) -> bool:
        """Whether guesses for any of those at the places `due` would pay if nearly all of them came true."""
        hoped = list(wishes)
        for place in due:
            gains = [HOPED**count for count in range(1, wishes[place].most + 1)]
            hoped[place] = replace(wishes[place], gains=gains)
        counts = replace(self, rooms=[inf] * len(hoped)).best(hoped, 1.0)
        return any(counts[place] for place in due)

    def _shape_of(self, counts: Sequence[int]) -> Shape:
        return self._shape(sum(count > 0 for count in counts), sum(counts))

    def _shape(self, guessing: int, guesses: int) -> Shape:
        apart = guessing if self.uniform else 0
        return Shape(self.sequences, self.rows + guesses, apart, apart + guesses if apart else 0)

    def _seconds(self, shape: Shape) -> float:
        """In plain decodes of as many sequences."""
        return self.costs.of(shape) / self.costs.plain(self.sequences)

    def _lost(self, shape: Shape) -> float:
        """What its guesses take, at worst, in the same unit."""
        return self.costs.lost(shape, shape.rows - self.rows) / self.costs.plain(self.sequences)


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


def _ablest(wishes: Sequence[Wish], sums: Sequence[Sequence[float]], depth: int, count: int) -> list[int]:
    """The places of the `count` sequences that gain most by so many guesses, of those that have them."""
    able = [(sums[place][depth], place) for place, wish in enumerate(wishes) if len(wish.gains) >= depth]
    able.sort(reverse=True)
    return [place for _, place in able[:count]]


def _drafting(wishes: Sequence[Wish], counts: Sequence[int]) -> float:
    return sum(count * wish.drafting for count, wish in zip(counts, wishes, strict=True))


def _worth(ranked: tuple[float, float, int]) -> float:
    return ranked[0]
