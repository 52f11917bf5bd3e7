"""What a decode costs by the number of its rows, learned from the steps themselves.

Two things are kept apart, because they change at different speeds. The level is what a step costs now: it grows with
the context and jumps when other sequences run; steps without guesses alone teach it. The curve is how much more a
decode of more rows costs than a plain one of as many sequences: it starts from what was measured at the start, and
steps with guesses teach it. Choices depend on the curve alone. It needn't rise: kernels that compute in tiles can make
64 rows cheaper than 48.

Each figure is the logarithm of seconds with a variance (a Kalman filter of one dimension): what wasn't seen for long is
believed less, and a hiccup counts as one and a half deviations at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt

_NOISE = 0.02
"""Variance of one step's time, relative."""
_OUTLIER = 1.5
"""Standard deviations that a sample may be off (Huber 1964)."""
_LEVEL_DRIFT = 3e-5
_CURVE_DRIFT = 2e-6
"""What variances grow by in a step."""
_NEW_MIX = 0.1
"""What the level's grows by when other sequences run."""
_MEASURED = 0.02
_UNKNOWN = 0.25
"""Variance of the curve where it was measured at the start, or near it, and where nothing is known."""
DOUBT = 1.0
"""Standard deviations by which guesses are charged more than they are thought to cost: what seems cheap is chosen, and
seems so by mistake more often than not."""
STALE = 0.005
"""Variance of the level from which a step without guesses is due."""
SLOPE = 0.3
"""What a row is taken to cost where nothing was measured, of a decode of one."""
_LEAST_SECONDS = 1e-7
_LEAST_PART = 0.1
"""Of two decodes' time the one with guesses took at least so much."""
_FIRST_DRAFT = 0.1
"""A guess of a drafting model, in plain steps, before one was seen."""
_DRAFT_ALPHA = 0.1
_DRAFT_OUTLIER = 2.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What decoding sequences have computed in a step."""

    sequences: int
    rows: int
    apart: int = 0
    """Those of the sequences that were in a decode of their own, for their guesses."""
    apart_rows: int = 0


class _Curve:
    """How much more decodes of more rows cost than the plain one of `sequences` rows. Known at some, interpolated."""

    def __init__(self, sequences: int, known: Mapping[int, float], variance: float) -> None:
        self._sequences = sequences
        self._known = {rows: ratio for rows, ratio in known.items() if rows > sequences}
        self._variance = dict.fromkeys(self._known, variance)
        self._seen = dict.fromkeys(self._known, 0)
        self._unseen = variance
        self.ratios: list[float] = []
        """By rows, the plain decode's own being 1."""

    def upto(self, rows: int) -> list[float]:
        """`ratios`, long enough for `rows`."""
        if len(self.ratios) <= rows:
            self._fill(rows)
        return self.ratios

    def doubt(self, rows: int, step: int) -> float:
        """Standard deviation of what is known of `rows`, relative."""
        return sqrt(self._variance.get(rows, self._unseen) + _CURVE_DRIFT * (step - self._seen.get(rows, 0)))

    def observe(self, rows: int, ratio: float, noise: float, step: int) -> None:
        """A decode of `rows` took `ratio` times the plain one, with a relative variance of `noise`."""
        expected = self.upto(rows)[rows]
        variance = self.doubt(rows, step) ** 2
        change, self._variance[rows] = _learn(log(ratio / expected), variance, noise)
        self._shift_neighbours(rows, change)
        self._known[rows] = expected * exp(change)
        self._seen[rows] = step
        self._fill(len(self.ratios) - 1)

    def _shift_neighbours(self, rows: int, change: float) -> None:
        """What changed here is likely to have changed near here: else one would look cheaper after the other."""
        reach = 1 + rows // 4
        for other in self._known:
            nearness = 1 - abs(other - rows) / reach
            if other != rows and nearness > 0:
                self._known[other] *= exp(nearness * change)

    def _fill(self, most: int) -> None:
        """Interpolate between what is known; beyond it a row costs what it costs on average up to there."""
        ratios = [1.0] * (self._sequences + 1)
        value = 1.0
        for rows in sorted(self._known):
            count = rows - len(ratios) + 1
            slope = (self._known[rows] - value) / count
            ratios += [value + slope * n for n in range(1, count + 1)]
            value = self._known[rows]
        last = len(ratios) - 1
        slope = (value - 1) / (last - self._sequences) if self._known else SLOPE / (1 + SLOPE * (self._sequences - 1))
        ratios += [value + max(slope, 0.0) * n for n in range(1, most - last + 1)]
        self.ratios = ratios


class StepCost:
    """Predicts decodes without a prompt in them. One owner: the controller."""

    def __init__(self, row_seconds: Mapping[int, float]) -> None:
        """`row_seconds`: rows → seconds of a decode, each row drawn from, as measured at the start; may be empty."""
        self._measured = {rows: max(seconds, _LEAST_SECONDS) for rows, seconds in row_seconds.items()}
        self._curves: dict[int, _Curve] = {}
        self._level: float | None = 1.0 if self._measured else None
        """What a plain decode costs now, as a multiple of what was measured or guessed."""
        self._variance = _NEW_MIX
        self._step = 0
        self._seen = 0

    @property
    def stale(self) -> bool:
        """What a plain step costs now is no longer known well: a step without guesses is due."""
        return self._level is None or self._level_variance() > STALE

    def change_mix(self) -> None:
        """Other sequences run from now on, with contexts of other lengths."""
        self._variance += _NEW_MIX

    def plain(self, sequences: int) -> float:
        """Seconds of a decode of one row for each of `sequences`."""
        return (self._level or 1.0) * self._base(sequences) if sequences else 0.0

    def ratios(self, sequences: int, rows: int) -> list[float]:
        """By number of rows, at least up to `rows`: what a decode of `sequences` costs, the plain one being 1."""
        return self._curve(sequences).upto(rows)

    def seconds(self, sequences: int, rows: int) -> float:
        """Seconds of a decode of `rows` rows of `sequences`."""
        return self.plain(sequences) * self.ratios(sequences, rows)[rows] if sequences else 0.0

    def of(self, shape: Shape) -> float:
        """Seconds of one decode or two."""
        others = self.seconds(shape.sequences - shape.apart, shape.rows - shape.apart_rows)
        return self.seconds(shape.apart, shape.apart_rows) + others

    def lost(self, shape: Shape, guesses: int) -> float:
        """Seconds that `guesses` have added to a step of this shape, at least 0, doubts counted against them."""
        if not guesses:
            return 0.0
        guessing, rows = (shape.apart, shape.apart_rows) if shape.apart else (shape.sequences, shape.rows)
        doubt = DOUBT * self._curve(guessing).doubt(rows, self._step)
        plain = self.seconds(shape.sequences, shape.rows - guesses)
        return max(self.of(shape) + doubt * self.seconds(guessing, rows) - plain, 0.0)

    def observe(self, shape: Shape, seconds: float) -> None:
        """Learn from decodes that took so long, with no prompt in them."""
        if not shape.apart:
            self._observe(shape.sequences, shape.rows, seconds)
            return
        others = self.seconds(shape.sequences - shape.apart, shape.rows - shape.apart_rows)
        self._observe(shape.apart, shape.apart_rows, max(seconds - others, _LEAST_PART * seconds))

    def _observe(self, sequences: int, rows: int, seconds: float) -> None:
        self._step += 1
        seconds = max(seconds, _LEAST_SECONDS)
        if rows > sequences:
            if self._level is not None:
                noise = _NOISE + self._level_variance()
                self._curve(sequences).observe(rows, seconds / self.plain(sequences), noise, self._step)
            return
        if self._level is None:
            self._level = seconds / self._base(sequences)
        seen = log(seconds / self.plain(sequences))
        change, self._variance = _learn(seen, self._level_variance(), _NOISE)
        self._level *= exp(change)
        self._seen = self._step

    def _level_variance(self) -> float:
        return self._variance + _LEVEL_DRIFT * (self._step - self._seen)

    def _base(self, rows: int) -> float:
        """What was measured for so many rows, interpolated; or guessed, in units of one row's."""
        known = self._measured
        if not known:
            return 1 + SLOPE * (rows - 1)
        if rows in known:
            return known[rows]
        below = max((seen for seen in known if seen < rows), default=0)
        above = min((seen for seen in known if seen > rows), default=0)
        if not below:
            return known[above]
        if not above:
            return known[below] * rows / below
        return known[below] + (known[above] - known[below]) * (rows - below) / (above - below)

    def _curve(self, sequences: int) -> _Curve:
        if sequences not in self._curves:
            plain = self._base(sequences)
            known = {rows: seconds / plain for rows, seconds in self._measured.items()}
            self._curves[sequences] = _Curve(sequences, known, _MEASURED if known else _UNKNOWN)
        return self._curves[sequences]


class DraftCost:
    """What it takes a drafting model to make one guess, by how many sequences it guesses for."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def each(self, sequences: int, plain: float) -> float:
        """Seconds. `plain`: a step without guesses, by which it is judged before it has been seen."""
        if not self._seconds:
            return _FIRST_DRAFT * plain
        return self._seconds[min(self._seconds, key=lambda seen: abs(seen - sequences))]

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """`guesses` in all for `sequences` took so long."""
        each = seconds / guesses
        known = self._seconds.get(sequences, each)
        self._seconds[sequences] = known + _DRAFT_ALPHA * (min(each, _DRAFT_OUTLIER * known) - known)


def _learn(seen: float, variance: float, noise: float) -> tuple[float, float]:
    """By how much a figure changes after a sample that was `seen` off, and its variance then."""
    deviation = sqrt(variance + noise)
    gain, most = variance / (variance + noise), _OUTLIER * deviation
    change = gain * min(max(seen, -most), most)
    if abs(seen) <= 2 * most:
        return change, (1 - gain) * variance
    # A hiccup, or a great mistake until now: in case it is that, what comes next must count for more.
    return change, min(1.5 * variance + _MEASURED / 4, _UNKNOWN)
