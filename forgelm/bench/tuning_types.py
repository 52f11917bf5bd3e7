"""What a tuning is told, asks for and finds: the types that the search, the lab and the tables share."""

from typing import Literal, Protocol

import msgspec

from forgelm.bench.judging import Judgement, Merit
from forgelm.bench.result import Row
from forgelm.bench.space import Axis, Settings, Value

Method = Literal["coordinate", "grid"]
Verdict = Literal["default", "taken", "not taken", "failed", "skipped"]
PAIRS, FINAL_PAIRS = 9, 13
"""From nine on one outlier doesn't ruin the interval."""


class TimeIsUp(Exception):
    """Ends the search: what is left of its time belongs to the last comparison."""


class Sample(msgspec.Struct, frozen=True):
    """One measurement of one candidate."""

    figures: dict[str, float] = {}
    rows: tuple[Row, ...] = ()
    """Of each workload."""
    failure: str = ""
    """Why there are no figures."""


class Pair(msgspec.Struct, frozen=True):
    """A candidate and the incumbent, measured one right after the other."""

    candidate: Sample
    incumbent: Sample
    seconds: float
    """That both took together."""


class Quality(msgspec.Struct, frozen=True):
    """How well a candidate's weights and KV type predict a text."""

    values: dict[str, float] = {}
    """"perplexity", and "kl" in nats where a reference could be asked."""
    problem: str = ""
    """Why there are none."""


class Lab(Protocol):
    """Where candidates are measured."""

    def refusal(self, settings: Settings) -> str:
        """Why they can't run, as far as that can be told without starting anything; "" when nothing is known."""

    def alone(self, settings: Settings) -> Sample:
        """One measurement."""

    def pair(self, settings: Settings, incumbent: Settings, number: int, stage: str) -> Pair:
        """The `number`-th measurement of both; `stage` tells those of the search from the last ones.

        Raises `TimeIsUp` when all of the search's time went by meanwhile.
        """

    def quality(self, settings: Settings) -> Quality:
        """Computed once for each file and KV type."""

    def changes_quality(self, settings: Settings) -> bool:
        """Whether they differ from the default in what decides quality."""


class Watch(Protocol):
    """Who is told how far the search is."""

    def begins(self, settings: Settings, candidates_left: int) -> None:
        """A candidate's turn has come; so many come after it, as far as is known."""

    def pair_done(self, seconds: float) -> None:
        """A pair is measured."""

    def ends(self, trial: "Trial") -> None:
        """A candidate is done with."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and how."""

    merits: tuple[Merit, ...]
    axes: tuple[Axis, ...]
    defaults: dict[str, Value]
    """The default's value of every axis."""
    method: Method = "coordinate"
    pairs: int = PAIRS
    final_pairs: int = FINAL_PAIRS
    max_quality_loss: float = 0.01
    """The most that perplexity may grow beside the default's, relative."""
    seconds: float = 0.0
    """That all of it may take; 0 is as long as it takes."""


class Trial(msgspec.Struct, frozen=True):
    """What became of one candidate."""

    settings: dict[str, Value]
    verdict: Verdict
    why: str
    against: dict[str, Value] = {}
    samples: tuple[Sample, ...] = ()
    opponents: tuple[Sample, ...] = ()
    """The incumbent's, measured in turn with them."""
    quality: dict[str, float] = {}
    judgement: Judgement | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What the search has found."""

    trials: tuple[Trial, ...]
    """The default first."""
    winner: dict[str, Value]
    """`{}` where the default stays."""
    why: str
    final: Judgement | None = None
    """The winner against the default, measured afresh; None where nothing challenged it."""
    final_samples: tuple[tuple[Sample, Sample], ...] = ()
    """(winner, default) of those pairs."""
    complete: bool = True
    """Whether every candidate had its turn."""
