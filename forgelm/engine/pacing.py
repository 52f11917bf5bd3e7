"""How many prompt tokens the next step may carry: a budget in time, learned from the steps themselves.

A server that fills its batch with prompts makes everyone who is decoding wait for all of them. Here a step with
decoders in it is sized to end within a target, so prefill gets the time that is left; with nobody decoding chunks are
larger but still bounded in time, so that aborts and the watchdog never wait long.
"""

from math import inf

from forgelm.config import MIN_CHUNK, Mode
from forgelm.engine.cellcost import CellCost

FLOOR_SECONDS = {"low_latency": 0.150, "high_throughput": 0.450}
"""The least a target may be, and thus the least time prefill is offered."""
DECODE_STEPS = {"low_latency": 4.0, "high_throughput": 12.0}
"""Automatic target: this many plain decode steps, so prefill keeps 3/4 (11/12) of the time on any machine."""
ALONE_SECONDS = 0.5
"""A chunk's time when nobody is decoding."""
TILE = 64
"""Rows from which a chunk is computed in tiles. Smaller ones cost more per row, above all deep in a context: on a CPU
with flash attention 11.8 ms a row against 7.2 at 3,000 tokens, and GPUs' matrix kernels have tiles as well."""
STRETCH = 3.5
"""How many times an automatic target a step may take to carry a whole tile."""
OUTLIER = 3.0
"""A sample counts for at most this many times what was known, so that one hiccup doesn't set the pace for a while."""
_ALPHA = 0.2
_LEAST_SECONDS = 1e-6


class Pacer:
    """Learns what steps cost and sizes chunks. Owned by the scheduler."""

    def __init__(
        self,
        mode: Mode,
        target_itl_ms: float,
        max_chunk: int,
        row_seconds: float,
        decode_seconds: float = 0.0,
        *,
        cells: CellCost | None = None,
    ) -> None:
        """`row_seconds` and `decode_seconds` are the warm-up's figures: one prefill row, one decode of one sequence.

        `cells` says how many cells finished requests may keep; without it, all.
        """
        self._mode = mode
        self._fixed_target = target_itl_ms / 1000
        self._max_chunk = max_chunk
        self._row_seconds = max(row_seconds, _LEAST_SECONDS)
        """Of a chunk of a tile or more."""
        self._small_penalty = 1.0
        """How much more a row of a smaller chunk costs."""
        self._decode_seconds: dict[int, float] = {1: decode_seconds} if decode_seconds else {}
        self._cells = cells or CellCost(None)

    @property
    def most_rows(self) -> int:
        """Rows that a step may have at all."""
        return self._max_chunk

    @property
    def row_seconds(self) -> float:
        """Seconds of one prefill row."""
        return self._row_seconds

    def cached_cells(self, decode_rows: int) -> int:
        """KV cells that finished requests may keep beside `decode_rows` decoders; as many as they like if it's 0."""
        return self._cells.affordable(decode_rows, self.decode_seconds(decode_rows))

    def observe(self, decode_rows: int, prefill_rows: int, seconds: float, cells: int = 0) -> None:
        """Learn from a finished step, in which `cells` KV cells were in use."""
        if decode_rows and not prefill_rows:
            self._cells.observe(decode_rows, cells, seconds)
        known = self.decode_seconds(decode_rows)
        if decode_rows and not prefill_rows:
            seen = self._decode_seconds.get(decode_rows)
            first = min(seconds, self._one_by_one(decode_rows))
            self._decode_seconds[decode_rows] = first if seen is None else _blend(seen, seconds)
        elif prefill_rows >= MIN_CHUNK // 2:
            row = max(seconds - known, 0.1 * seconds) / prefill_rows
            self._learn_row(row, small=prefill_rows < TILE)
            if decode_rows and seconds < known:
                # With prompts in it a step can't be shorter than without.
                self._decode_seconds[decode_rows] = seconds

    def _learn_row(self, row: float, *, small: bool) -> None:
        if small and row > self._row_seconds:
            self._small_penalty = _blend(self._small_penalty, row / self._row_seconds)
        else:
            # A small chunk's row never costs less than a large one's: it says that both have become cheaper.
            self._row_seconds = max(_blend(self._row_seconds, row), _LEAST_SECONDS)

    def decode_seconds(self, rows: int) -> float:
        """Predicted time of a step of `rows` decoding sequences and nothing else."""
        if rows == 0:
            return 0.0
        known = self._decode_seconds
        if not known:
            return rows * self._row_seconds
        nearest = known[min(known, key=lambda seen: abs(seen - rows))]
        return min(nearest, self._one_by_one(rows))

    def _one_by_one(self, rows: int) -> float:
        """What `rows` sequences would take in smaller steps that are known: no step of all of them takes longer."""
        known = self._decode_seconds
        return min((rows / seen * known[seen] for seen in known if seen < rows), default=inf)

    def target(self, decode_rows: int) -> float:
        """Seconds that a step with `decode_rows` decoders may take."""
        if decode_rows == 0:
            return ALONE_SECONDS
        if self._fixed_target:
            return self._fixed_target
        return max(FLOOR_SECONDS[self._mode], DECODE_STEPS[self._mode] * self.decode_seconds(decode_rows))

    def prefill_rows(self, decode_rows: int) -> int:
        """Prompt tokens that fit beside `decode_rows` decoders: MIN_CHUNK … what is left of one ubatch."""
        target, decode = self.target(decode_rows), self.decode_seconds(decode_rows)
        rows = min(int((target - decode) / self._row_seconds), self._max_chunk - decode_rows)
        if rows < TILE:
            rows = self._less_than_a_tile(target, decode)
        return max(MIN_CHUNK, min(rows, self._max_chunk - decode_rows))

    def _less_than_a_tile(self, target: float, decode: float) -> int:
        """Rows where a tile doesn't fit the target: still a tile if that stays bearable, else what fits."""
        most = target if self._fixed_target else STRETCH * target
        if decode + TILE * self._row_seconds <= most:
            return TILE
        return min(int((target - decode) / (self._row_seconds * self._small_penalty)), TILE - 1)

    def predict(self, decode_rows: int, prefill_rows: int) -> float:
        """Seconds a step should take."""
        penalty = self._small_penalty if prefill_rows < TILE else 1.0
        return self.decode_seconds(decode_rows) + prefill_rows * self._row_seconds * penalty


def _blend(old: float, new: float) -> float:
    return old + _ALPHA * (min(new, OUTLIER * old) - old)
