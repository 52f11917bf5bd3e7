"""How far apart two models' next-token distributions are, row by row, and what many rows come to.

In double precision: the divergences of good KV types are small differences of large numbers.
"""

import numpy as np
import numpy.typing as npt

from forgelm.bench.requests import Quality

LogProbs = npt.NDArray[np.float64]
"""Shape (vocabulary,), natural logarithms."""


def log_softmax(logits: npt.NDArray[np.float32]) -> LogProbs:
    """Log-probabilities of one row of logits, shape (vocabulary,)."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    return values


def divergence(reference: LogProbs, other: LogProbs) -> float:
    """Kullback-Leibler divergence KL(reference ‖ other) of one row, in nats."""
    return float(np.exp(reference) @ (reference - other))


class Tally:
    """The rows of one KV type, added as they come."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._surprises: list[float] = []
        self._same = 0

    def add(self, reference: LogProbs, other: LogProbs, token: int) -> None:
        """One row of each; `token` is what the text goes on with."""
        self._divergences.append(divergence(reference, other))
        self._surprises.append(-float(other[token]))
        self._same += int(reference.argmax() == other.argmax())

    def quality(self, kv_type: str) -> Quality:
        """What the rows so far come to; at least one is needed."""
        rows = len(self._divergences)
        return Quality(
            kv_type=kv_type,
            rows=rows,
            kl_mean=float(np.mean(self._divergences)),
            kl_p99=float(np.percentile(self._divergences, 99)),
            same_top=self._same / rows,
            perplexity=float(np.exp(np.mean(self._surprises))),
        )
