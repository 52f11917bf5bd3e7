"""How far a tuning is: a bar with what is left on a terminal, elsewhere a line as each candidate begins and ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from forgelm.bench.judging import SECOND_LOOK
from forgelm.bench.space import Settings, label
from forgelm.bench.tuning_types import Goal, Trial, Watch

if TYPE_CHECKING:
    from rich.progress import Progress


class Expectation:
    """How much of a search is left, by what its candidates have taken so far."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._left = 0
        self._in_turn = 0
        self._ended = 0
        self._seconds: list[float] = []
        self._taken = False
        self._last = False

    def begins(self, settings: Settings, candidates_left: int) -> None:
        """A candidate's turn has come."""
        self._left, self._in_turn = candidates_left, 0
        self._last = self._taken and not candidates_left and bool(settings)

    def pair_done(self, seconds: float) -> None:
        """A pair is measured."""
        self._in_turn += 1
        self._seconds.append(seconds)

    def ends(self, trial: Trial) -> None:
        """A candidate is done with."""
        self._ended += bool(trial.samples)
        self._taken = self._taken or trial.verdict == "taken"

    @property
    def done(self) -> int:
        """Pairs so far."""
        return len(self._seconds)

    @property
    def pairs(self) -> int:
        """Pairs that are still to come, about: many candidates need fewer than they may have."""
        each = self.done / self._ended if self._ended > 2 else (SECOND_LOOK + self._goal.pairs) / 2
        return max(0, round(self._left * each + self._goal.final_pairs - self._in_turn * self._last))

    @property
    def seconds(self) -> float | None:
        """What they take; None before there was one."""
        return self.pairs * sum(self._seconds) / self.done if self.done else None

    @property
    def words(self) -> str:
        """For people."""
        if self.seconds is None:
            return ""
        return f"about {self.seconds / 60:.0f} min left" if self.seconds >= 90 else f"about {self.seconds:.0f} s left"


class _Lines:
    """For what is no terminal."""

    def __init__(self, goal: Goal) -> None:
        self._expected = Expectation(goal)

    def begins(self, settings: Settings, candidates_left: int) -> None:
        self._expected.begins(settings, candidates_left)
        left = ", ".join(filter(None, (f"{candidates_left} after it", self._expected.words)))
        click.echo(f"{label(settings)} ({left})", err=True)

    def pair_done(self, seconds: float) -> None:
        self._expected.pair_done(seconds)

    def ends(self, trial: Trial) -> None:
        self._expected.ends(trial)
        if trial.verdict != "default":
            click.echo(f"  {trial.verdict}: {trial.why}", err=True)


class _Bar:
    """For a terminal: candidates that are done with stand above the bar."""

    def __init__(self, goal: Goal, bar: "Progress") -> None:
        self._expected = Expectation(goal)
        self._bar = bar
        self._task = bar.add_task("default", total=None, left="")

    def begins(self, settings: Settings, candidates_left: int) -> None:
        self._expected.begins(settings, candidates_left)
        self._bar.update(self._task, description=label(settings))
        self._update()

    def pair_done(self, seconds: float) -> None:
        self._expected.pair_done(seconds)
        self._update()

    def ends(self, trial: Trial) -> None:
        self._expected.ends(trial)
        if trial.verdict != "default":
            self._bar.console.print(f"{label(trial.settings)}: {trial.verdict}, {trial.why}", markup=False)

    def _update(self) -> None:
        done = self._expected.done
        self._bar.update(self._task, completed=done, total=done + self._expected.pairs, left=self._expected.words)


@contextmanager
def search_progress(goal: Goal) -> Iterator[Watch]:
    """Says on stderr how far the search is."""
    if not sys.stderr.isatty():
        yield _Lines(goal)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    words, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}", markup=False)
    with Progress(words, BarColumn(), left, console=Console(stderr=True, highlight=False), transient=True) as bar:
        yield _Bar(goal, bar)
