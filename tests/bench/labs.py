"""A scripted `Lab`: what candidates' true figures are, how noisy the machine is, what fails, and when it dies."""

import random
from collections.abc import Callable, Mapping

from forgelm.bench.space import Settings, Value
from forgelm.bench.tuning_types import Pair, Quality, Sample, Trial

Truth = Callable[[dict[str, Value]], Mapping[str, float] | str]
"""Settings → their figures without noise, or why they fail."""


class Died(Exception):
    """The process was killed here."""


class ScriptedLab:
    """Figures by `truth`, each times its own noise, both of a pair times the same drift."""

    def __init__(
        self,
        truth: Truth,
        *,
        noise: float = 0.0,
        seed: int = 0,
        refused: Mapping[str, str] = {},
        perplexities: Mapping[str, float] = {},
        seconds: float = 1.0,
    ) -> None:
        """`refused` and `perplexities` go by one value of the settings, such as "q4_0"."""
        self._truth = truth
        self._noise = noise
        self._chance = random.Random(seed)
        self._refused = refused
        self._perplexities = perplexities
        self._seconds = seconds
        self.clock = 0.0
        self.measured: list[dict[str, Value]] = []
        """Candidates of all pairs, in order."""
        self.stages: list[str] = []
        self.dies_after: int | None = None

    def refusal(self, settings: Settings) -> str:
        return next((why for value, why in self._refused.items() if value in settings.values()), "")

    def alone(self, settings: Settings) -> Sample:
        return self._sample(settings, 1.0)

    def pair(self, settings: Settings, incumbent: Settings, number: int, stage: str) -> Pair:
        if self.dies_after is not None and len(self.measured) >= self.dies_after:
            raise Died
        self.measured.append(dict(settings))
        self.stages.append(stage)
        self.clock += self._seconds
        drift = self._chance.uniform(0.5, 1.5)
        return Pair(self._sample(settings, drift), self._sample(incumbent, drift), self._seconds)

    def quality(self, settings: Settings) -> Quality:
        for value, perplexity in self._perplexities.items():
            if value in settings.values():
                return Quality({"perplexity": perplexity}) if perplexity else Quality(problem="the worker died")
        return Quality({"perplexity": 10.0})

    def changes_quality(self, settings: Settings) -> bool:
        return any(value in settings.values() for value in self._perplexities)

    def _sample(self, settings: Settings, drift: float) -> Sample:
        truth = self._truth(dict(settings))
        if isinstance(truth, str):
            return Sample(failure=truth)
        spread = [self._chance.gauss(1, self._noise) for _ in truth]
        return Sample(
            {
                name: value * drift * max(0.1, factor)
                for (name, value), factor in zip(truth.items(), spread, strict=True)
            }
        )


class Told:
    """A `Watch` that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[dict[str, Value], int]] = []
        self.pairs = 0
        self.ended: list[Trial] = []

    def begins(self, settings: Settings, candidates_left: int) -> None:
        self.begun.append((dict(settings), candidates_left))

    def pair_done(self, seconds: float) -> None:
        self.pairs += 1

    def ends(self, trial: Trial) -> None:
        self.ended.append(trial)
