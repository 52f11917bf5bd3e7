"""Percentiles, and the statistics of pairs, which are the package's: `forgelm bench tune` needs them, too."""

import math
from collections.abc import Sequence

from forgelm.bench.pairs import CONFIDENCE, INTERVAL, Estimate, interval_depth, location, ratio_of_pairs

__all__ = ["CONFIDENCE", "INTERVAL", "Estimate", "interval_depth", "location", "percentile", "ratio_of_pairs"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile with linear interpolation; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
