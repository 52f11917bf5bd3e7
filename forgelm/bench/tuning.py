"""The search for better settings: candidates challenge the best so far, and the winner meets the default once more.

A candidate that can't run, fails, or is clearly worse after few pairs is a trial with its reason and no more; the
default is the first incumbent and stays it where nothing is better beyond the noise. How a pair is measured is the
`Lab`'s part, what it means `judging`'s. All decisions follow from the pairs, so a search whose pairs were written down
goes on where it stopped.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from forgelm.bench.judging import Figures, hopeless, judge
from forgelm.bench.space import DEFAULT, Settings, Value, grid
from forgelm.bench.tuning_types import Goal, Lab, Outcome, Pair, TimeIsUp, Trial, Verdict, Watch
from forgelm.errors import MachineError

SEEN = 2
"""Pairs of a candidate whose quality rules it out: enough for the table to say what it would have brought."""
TRIES = 3
"""Pairs in which the incumbent fails before the candidate is given up: it isn't the candidate's fault alone."""


class Search:
    """One search, from the default to the winner."""

    def __init__(self, lab: Lab, goal: Goal, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self._lab = lab
        self._goal = goal
        self._watch = watch
        self._clock = clock
        self._began = clock()
        self._pair_seconds: list[float] = []
        self._incumbent: dict[str, Value] = {}
        self._trials: list[Trial] = []

    def run(self) -> Outcome:
        """Search, then let the winner meet the default again. Raises `MachineError` when the default can't run."""
        self._measure_default()
        complete = True
        try:
            for settings, left in self._candidates():
                self._challenge(settings, left)
        except TimeIsUp:
            complete = False
        return self._confirmed(complete)

    # --- the candidates ---

    def _measure_default(self) -> None:
        self._watch.begins(DEFAULT, self._total())
        try:
            sample = self._lab.alone(DEFAULT)
        except TimeIsUp:
            raise MachineError("the time was up before the default was measured once") from None
        if sample.failure:
            raise MachineError(f"the default can't be measured: {sample.failure}")
        trial = Trial({}, "default", "", samples=(sample,), quality=self._quality_where_asked())
        self._trials.append(trial)
        self._watch.ends(trial)

    def _total(self) -> int:
        axes, defaults = self._goal.axes, self._goal.defaults
        return len(list(grid(axes, defaults))) if self._goal.method == "grid" else sum(len(a.values) for a in axes)

    def _candidates(self) -> Iterator[tuple[dict[str, Value], int]]:
        """Each with how many come after it. Those of an axis lay its values over whoever leads by then."""
        left = self._total()
        for settings in self._grid() if self._goal.method == "grid" else self._coordinates():
            left -= 1
            if all(trial.settings != settings for trial in self._trials):
                yield settings, left

    def _grid(self) -> Iterator[dict[str, Value]]:
        return grid(self._goal.axes, self._goal.defaults)

    def _coordinates(self) -> Iterator[dict[str, Value]]:
        for axis in self._goal.axes:
            for value in axis.values:
                settings = {**self._incumbent, axis.key: value}
                yield {key: value for key, value in settings.items() if value != self._goal.defaults[key]}

    # --- one candidate ---

    def _challenge(self, settings: dict[str, Value], left: int) -> None:
        self._watch.begins(settings, left)
        trial = self._tried(settings)
        if trial.verdict == "taken":
            self._incumbent = settings
        self._trials.append(trial)
        self._watch.ends(trial)

    def _tried(self, settings: dict[str, Value]) -> Trial:
        against = dict(self._incumbent)
        if refusal := self._lab.refusal(settings):
            return Trial(settings, "skipped", refusal, against)
        self._require_time()
        quality, loss = self._quality_of(settings)
        pairs = list(self._pairs(settings, SEEN if loss else self._goal.pairs, self._incumbent))
        failure = next((pair.candidate.failure for pair in pairs if pair.candidate.failure), "")
        good = [pair for pair in pairs if not (pair.candidate.failure or pair.incumbent.failure)]
        ours, theirs = tuple(pair.candidate for pair in pairs), tuple(pair.incumbent for pair in pairs)
        trial = Trial(settings, "not taken", loss, against, ours, theirs, quality)
        if failure:
            return msgspec.structs.replace(trial, verdict="failed", why=failure)
        if loss:
            return trial
        if not good:
            return msgspec.structs.replace(trial, why=f"the incumbent failed beside it: {pairs[-1].incumbent.failure}")
        judgement = judge(self._goal.merits, *_figures(good))
        why = hopeless(self._goal.merits, *_figures(good)) if len(good) < self._goal.pairs else ""
        verdict: Verdict = "taken" if judgement.better and not why else "not taken"
        return msgspec.structs.replace(trial, verdict=verdict, why=why or judgement.why, judgement=judgement)

    def _pairs(self, settings: Settings, most: int, incumbent: Settings, stage: str = "search") -> Iterator[Pair]:
        """Until there are `most` good ones, the candidate fails, or more aren't worth it.

        Twice as many where a loss that noise may have made is all that speaks against the candidate.
        """
        good: list[Pair] = []
        for number in range(2 * most + TRIES):
            pair = self._measured(settings, incumbent, number, stage)
            yield pair
            if pair.candidate.failure:
                return
            if not pair.incumbent.failure:
                good.append(pair)
            if number + 1 - len(good) >= TRIES or self._enough(good, most, stage):
                return
            if stage == "search":
                self._require_time()

    def _enough(self, good: Sequence[Pair], most: int, stage: str) -> bool:
        if len(good) < most:
            return stage == "search" and bool(hopeless(self._goal.merits, *_figures(good)))
        if len(good) >= 2 * most or most == SEEN or not judge(self._goal.merits, *_figures(good)).unsure:
            return True
        return bool(self._goal.seconds) and self._clock() - self._began > self._goal.seconds

    def _measured(self, settings: Settings, incumbent: Settings, number: int, stage: str) -> Pair:
        pair = self._lab.pair(settings, incumbent, number, stage)
        self._pair_seconds.append(pair.seconds)
        self._watch.pair_done(pair.seconds)
        return pair

    # --- quality ---

    def _quality_where_asked(self) -> dict[str, float]:
        """The default's, where candidates may differ from it or it is a figure of merit."""
        candidates: Sequence[Mapping[str, Value]] = [
            {axis.key: value} for axis in self._goal.axes for value in axis.values
        ]
        asked = any(merit.name == "quality" for merit in self._goal.merits)
        if asked or any(map(self._lab.changes_quality, candidates)):
            return self._lab.quality(DEFAULT).values
        return {}

    def _quality_of(self, settings: Settings) -> tuple[dict[str, float], str]:
        """The candidate's, and why it can't be taken for that; "" when it can."""
        default = self._trials[0].quality
        if not self._lab.changes_quality(settings):
            return default, ""
        quality = self._lab.quality(settings)
        ours, theirs = quality.values.get("perplexity"), default.get("perplexity")
        if ours is None or theirs is None:
            why = quality.problem or "the default's isn't known either"
            return quality.values, f"its quality can't be told: {why}"
        loss = ours / theirs - 1
        if loss > self._goal.max_quality_loss:
            return quality.values, f"perplexity {loss:+.1%}, and {self._goal.max_quality_loss:.1%} is the most"
        return quality.values, ""

    # --- time ---

    def _require_time(self) -> None:
        """Raise `TimeIsUp` when what is left is what the last comparison takes."""
        if not self._goal.seconds:
            return
        pair = median(self._pair_seconds) if self._pair_seconds else 0.0
        last = pair * self._goal.final_pairs if self._incumbent else 0.0
        if self._clock() - self._began + pair + last > self._goal.seconds:
            raise TimeIsUp

    # --- the end ---

    def _confirmed(self, complete: bool) -> Outcome:
        trials = tuple(self._trials)
        if not self._incumbent:
            why = "nothing was better beyond the noise" if complete else "nothing was better so far"
            return Outcome(trials, {}, why, complete=complete)
        self._watch.begins(self._incumbent, 0)
        pairs = list(self._pairs(self._incumbent, self._goal.final_pairs, DEFAULT, "final"))
        good = [pair for pair in pairs if not (pair.candidate.failure or pair.incumbent.failure)]
        failure = next((pair.candidate.failure for pair in pairs if pair.candidate.failure), "")
        judgement = judge(self._goal.merits, *_figures(good))
        samples = tuple((pair.candidate, pair.incumbent) for pair in pairs)
        if judgement.better and not failure:
            return Outcome(trials, dict(self._incumbent), judgement.why, judgement, samples, complete)
        why = f"the best of the search didn't hold against the default, measured again: {failure or judgement.why}"
        return Outcome(trials, {}, why, judgement, samples, complete)


def _figures(pairs: Sequence[Pair]) -> tuple[list[Figures], list[Figures]]:
    return [pair.candidate.figures for pair in pairs], [pair.incumbent.figures for pair in pairs]
