"""What cached cells cost those who decode: llama.cpp's unified cache visits every cell in use for every row.

Learned from the steps themselves, as the slope of a decode step's time over the cells in use: each number of rows has
averages of its own, and what they have in common is the slope per row and cell.
"""

from dataclasses import dataclass

SHARE = 0.10
"""Of a decode step's time that finished requests' cells may take."""
LEAST_CELLS = 1024
"""Cells that finished requests may keep whatever they cost: about one chat and a shared system prompt."""
UNBOUNDED = 2**31
_FADE = 0.02
"""Weight of a new sample in the averages."""
_MIN_SAMPLES = 64
_MIN_SPREAD = 256.0
"""Standard deviation of the cells seen below which a slope says nothing."""
_OUTLIER = 2.0


@dataclass(slots=True)
class _Means:
    cells: float
    seconds: float


class CellCost:
    """Learns the slope, and turns it into a bound."""

    def __init__(self, fixed: int | None = 0) -> None:
        """`fixed` cells are allowed always; 0 learns, None allows all."""
        self._fixed = fixed
        self._means: dict[int, _Means] = {}
        self._covariance = 0.0
        self._variance = 0.0
        self._samples = 0

    def observe(self, rows: int, cells: int, seconds: float) -> None:
        """Learn from a step that decoded `rows` sequences and nothing else."""
        means = self._means.setdefault(rows, _Means(cells, seconds))
        # A step that the machine's other work stretched says nothing about cells.
        if seconds > _OUTLIER * means.seconds:
            means.seconds += _FADE * means.seconds
            return
        off_cells, off_seconds = cells - means.cells, (seconds - means.seconds) / rows
        means.cells += _FADE * off_cells
        means.seconds += _FADE * (seconds - means.seconds)
        self._covariance += _FADE * (off_cells * off_seconds - self._covariance)
        self._variance += _FADE * (off_cells * off_cells - self._variance)
        self._samples += 1

    @property
    def seconds_per_cell(self) -> float:
        """Of one row; 0 while nothing reliable is known."""
        if self._samples < _MIN_SAMPLES or self._variance < _MIN_SPREAD**2:
            return 0.0
        return max(0.0, self._covariance / self._variance)

    def affordable(self, rows: int, step_seconds: float) -> int:
        """Cells that may be cached beside `rows` decoders whose step takes `step_seconds`."""
        if self._fixed:
            return self._fixed
        slope = self.seconds_per_cell if self._fixed is not None and rows else 0.0
        if slope == 0.0:
            return UNBOUNDED
        return max(LEAST_CELLS, int(min(SHARE * step_seconds / (rows * slope), UNBOUNDED)))

