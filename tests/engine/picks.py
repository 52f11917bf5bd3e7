"""What sampling hands to the pick, read off exactly."""

import numpy as np
import pytest

from forgelm.engine import sampling
from forgelm.engine.plan import Draw
from forgelm.engine.sampling import draw_token


class Chooser:
    """Stands for the pick: takes the place it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.at = 0
        self.ids = np.empty(0, np.intp)
        self.weights = np.empty(0, np.float32)

    def __call__(self, ids: np.ndarray | None, weights: np.ndarray, _: Draw) -> int:
        self.ids, self.weights = np.arange(len(weights)) if ids is None else ids, weights
        assert self.ids.shape == weights.shape
        return self.at


def shares(logits: np.ndarray, how: Draw, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Each token's probability: the weight of the place that it is drawn from. Every place with weight is taken once,
    and must give the token that the pick was told it is."""
    chooser, found = Chooser(), np.zeros(len(logits))
    monkeypatch.setattr(sampling, "pick", chooser)
    drawn = draw_token(logits, how)
    assert drawn.problem == ""
    if not len(chooser.weights):
        found[drawn.token] = 1.0
        return found
    weights = chooser.weights.astype(np.float64)
    for at in np.flatnonzero(weights).tolist():
        chooser.at = at
        assert draw_token(logits, how).token == chooser.ids[at]
        assert found[chooser.ids[at]] == 0.0
        found[chooser.ids[at]] = weights[at] / weights.sum()
    return found
