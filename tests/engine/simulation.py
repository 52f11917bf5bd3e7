"""A made-up server for the controller of speculation: machines with known costs, texts with known chances.

Costs are seconds relative to a plain decode of one row. The controller sees them with noise; what is judged is the true
cost, so a run with one seed is the same everywhere.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from forgelm.engine.speculation import Choice, Option, Result, Speculator, Track
from forgelm.ipc.messages import Drafting

CPU = {1: 1.0, 2: 1.19, 3: 1.61, 4: 1.94, 5: 2.47, 6: 2.83, 8: 3.40, 9: 3.96, 12: 4.83, 16: 6.30, 24: 9.24, 32: 12.2}
CPU |= {48: 18.1, 64: 13.5, 72: 15.2, 80: 17.0}
"""Two cores, a small model: every row costs, but for a tile of 64."""
GPU = {1: 1.0, 8: 1.03, 16: 1.1, 32: 1.35, 64: 2.0, 128: 3.6}
"""Bound by its memory: few rows cost as much as one."""
TEXT_MATCHES = (3, 6, 10, 16)


def curve(points: Mapping[int, float], rows: int) -> float:
    """`points`, interpolated."""
    if rows in points:
        return points[rows]
    below = max(known for known in points if known < rows)
    above = min((known for known in points if known > rows), default=0)
    if not above:
        return points[below] * rows / below
    return points[below] + (points[above] - points[below]) * (rows - below) / (above - below)


@dataclass
class Machine:
    """What steps take."""

    points: Mapping[int, float]
    seed: int = 0
    noise: float = 0.15
    """Standard deviation of a step's time, relative."""
    hiccups: float = 0.01
    """How often a step takes three times as long."""
    growth: float = 0.0
    """How much more a step costs after 1,000 tokens of all its sequences, on average."""
    draft: float = 0.1
    """What one guess of a drafting model takes."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def decode(self, rows: int, progress: float) -> float:
        return curve(self.points, rows) * (1 + self.growth * progress / 1000) if rows else 0.0

    def measured(self, seconds: float) -> float:
        hiccup = 3.0 if self._random.random() < self.hiccups else 1.0
        return seconds * max(0.5, self._random.gauss(1.0, self.noise)) * hiccup


@dataclass
class Text:
    """What a sequence says."""

    chance: Callable[[int], float]
    """Token → the chance that a guess of it is right if those before it were."""
    finds: float = 1.0
    """How often a look-up finds anything."""
    drafting: Drafting = field(default_factory=Drafting)
    worse: str = ""
    """A drafter that hardly ever guesses right."""


@dataclass
class Run:
    """One sequence's fate."""

    text: Text
    track: Track
    tokens: int = 0
    seconds: float = 0.0
    """True time, until it has all its tokens."""
    off: float = 0.0
    """The same had nobody guessed."""
    guessed: Counter[str] = field(default_factory=Counter)
    """By drafter."""
    marks: list[tuple[int, float, float]] = field(default_factory=list)
    """After each step: tokens, seconds, off."""

    def speed(self, first: int, last: int) -> float:
        """Times the speed without guesses, from one token to another."""
        begin = next(mark for mark in self.marks if mark[0] >= first)
        end = next(mark for mark in self.marks if mark[0] >= last)
        return (end[2] - begin[2]) / (end[1] - begin[1])


Policy = Callable[[Sequence[Option]], list[Choice]]


@dataclass
class Server:
    """Runs sequences side by side until each has its tokens."""

    machine: Machine
    speculator: Speculator
    uniform: bool = False
    seed: int = 0
    fixed: Policy | None = None
    """Guess by this instead of the controller."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def serve(self, texts: Sequence[Text], tokens: int, most: int = 8) -> list[Run]:
        runs = [Run(text, self.speculator.begin(text.drafting)) for text in texts]
        while any(run.tokens < tokens for run in runs):
            self._step(runs, tokens, most)
        for run in runs:
            self.speculator.end(run.track)
        return runs

    def _step(self, runs: Sequence[Run], tokens: int, most: int) -> None:
        options = [self._option(run, most) for run in runs]
        choices = self.fixed(options) if self.fixed else self.speculator.choose(options, len(runs))
        results: list[Result] = []
        for run, choice in zip(runs, choices, strict=True):
            if choice.depth:
                run.guessed[choice.drafter] += choice.depth
                results.append((run.track, choice, choice.depth, self._accepted(run, choice)))
        self._pass_time(runs, results, tokens)

    def _pass_time(self, runs: Sequence[Run], results: Sequence[Result], tokens: int) -> None:
        machine = self.machine
        progress = sum(min(run.tokens, tokens) for run in runs) / len(runs)
        guesses = sum(drafted for _, _, drafted, _ in results)
        made = sum(drafted for _, choice, drafted, _ in results if choice.drafter != "ngram")
        rows, plain = len(runs) + guesses, machine.decode(len(runs), progress)
        others = len(runs) - len(results) if self.uniform and results else 0
        decode = machine.decode(rows - others, progress) + machine.decode(others, progress)
        drafting = machine.draft * made
        right = {id(track): accepted for track, _, _, accepted in results}
        for run in runs:
            if run.tokens < tokens:
                gained = 1 + right.get(id(run.track), 0)
                run.tokens += gained
                run.seconds += decode + drafting
                run.off += gained * plain
                run.marks.append((run.tokens, run.seconds, run.off))
        self.speculator.observe(
            results,
            sequences=len(runs),
            rows=rows,
            seconds=machine.measured(decode),
            drafting=machine.measured(drafting) if drafting else 0.0,
            alone=True,
        )

    def _option(self, run: Run, most: int) -> Option:
        if not self.speculator.wants_lookup(run.track) or self._random.random() >= run.text.finds:
            return Option(run.track, most)
        return Option(run.track, most, most, self._random.choice(TEXT_MATCHES))

    def _accepted(self, run: Run, choice: Choice) -> int:
        for place in range(choice.depth):
            chance = run.text.chance(run.tokens + place) if choice.drafter != run.text.worse else 0.02
            if self._random.random() >= chance:
                return place
        return choice.depth
