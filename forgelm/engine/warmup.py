"""What a fresh context costs: measured at the start, which also touches weights and buffers for the first time."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from forgelm.engine.plan import Draw, Drawn
from forgelm.ipc.messages import Sampling
from forgelm.llama.context import Context

ROWS = 64
"""Rows of the timed chunk: enough to be compute-bound, short on a slow CPU."""
RANKING_PAIRS = 8
"""Decodes with and without ranking that are compared."""
GUESSED = (2, 4, 16, 64, 8, 32, 3, 6, 12, 24, 48)
"""Rows of the timed verifications, in the order in which they are worth knowing; 64 are a tile, cheap by the row."""
GUESSED_SECONDS = 0.8
"""Time after which no more of them are begun."""
TIMINGS = 3
"""Of decodes of a few rows, whose median counts: what is taken to be cheap by mistake costs somebody time. Of more rows
two must do, and the lower counts: the first time is never typical."""
FEW_ROWS = 4
GREEDY = Draw(Sampling(temperature=0.0), 0, 0, np.empty(0, np.int32))

DrawRow = Callable[[int, int, Draw], Drawn]
"""Draws from a slot's batch row."""


class Warmup:
    """Uses slots of a context that nothing else uses yet, and leaves them empty."""

    def __init__(self, context: Context, draw: DrawRow) -> None:
        self._context = context
        self._vocabulary = context.model.vocab.size
        self._draw = draw

    def rates(self) -> tuple[float, float]:
        """A chunk's tokens per second, and the seconds of a decode of one row."""
        rows = min(ROWS, self._context.n_ubatch)
        self._time(1)
        return rows / self._time(rows), self._time(1)

    def ranking_pays(self, slot: int) -> bool:
        """Whether a decode in `slot`, whose logits are ranked, is no slower than one in slot 0."""
        pairs = [(self._time(1), self._time(1, slot)) for _ in range(RANKING_PAIRS)]
        return median(with_ - without for without, with_ in pairs) <= 0

    def guessed(self, most: int) -> dict[int, float]:
        """Seconds of decodes in which up to `most` + 1 rows of one sequence are all drawn from: rows → seconds."""
        began, seconds = time.perf_counter(), {}
        for rows in (1, *GUESSED):
            if rows > min(most + 1, self._context.n_ubatch) or time.perf_counter() - began > GUESSED_SECONDS:
                continue
            few = rows <= FEW_ROWS
            times = [self._time(rows, outputs=rows) for _ in range(TIMINGS if few else 2)]
            seconds[rows] = median(times) if few else min(times)
        return seconds

    def weigh(self) -> tuple[float, int]:
        """Bytes that a token's keys and values take when saved, and bytes of a recurrent state."""
        context, rows = self._context, min(ROWS, self._context.n_ubatch)
        context.add(0, self._tokens(rows), 0, logits=False)
        context.decode()
        state = len(context.save(0).data) if context.recurrent else 0
        whole = len(context.save(0, whole=True).data)
        context.trim(0, 0)
        return (whole - state) / rows, state

    def _time(self, rows: int, slot: int = 0, *, outputs: int = 1) -> float:
        """Seconds of a decode whose last `outputs` rows are drawn from."""
        tokens = self._tokens(rows)
        began = time.perf_counter()
        last = self._context.add(slot, tokens, 0, logits=True, outputs=outputs)
        self._context.decode()
        for row in range(last + 1 - outputs, last + 1):
            self._draw(slot, row, GREEDY)
        seconds = time.perf_counter() - began
        self._context.trim(slot, 0)
        return seconds

    def _tokens(self, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.arange(rows, dtype=np.int32) % self._vocabulary
