"""One cell of the table: a context of some length and KV type, filled with a text and measured.

Meant for a process that does nothing else: the memory it reads is the whole process's.
"""

import time
from statistics import median

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped]

from forgelm.bench.contexts import compute, devices_for, feed, ids, loaded, opened
from forgelm.bench.needles import Needle
from forgelm.bench.requests import FIRST_LOOK, Cell, CellRequest, Recall, TooSlow
from forgelm.bench.stats import log_softmax
from forgelm.config import Engine
from forgelm.llama.context import Context

SURE = 8192
"""Tokens after which their growing cost can be told from noise."""
MOST_SHARES, SHARES_OF_HYBRIDS = 64, 16
"""Parts of a context that is filled with copies, each a sequence of its own. A hybrid has a state for each."""
ON_CPU = ("CPU",)


class _OverLimit(Exception):
    """Ends a text that would take too long."""

    def __init__(self, seconds: float, after: int) -> None:
        super().__init__()
        self.verdict = TooSlow(seconds, after)


class Watch:
    """Times the chunks of a text of `total` tokens, and raises `_OverLimit` once they are sure to take too long."""

    def __init__(self, total: int, limit_seconds: float) -> None:
        self._total = total
        self._limit = limit_seconds
        self._depths = [0]
        self._times = [time.perf_counter()]

    @property
    def seconds(self) -> float:
        return self._times[-1] - self._times[0]

    def __call__(self, depth: int) -> None:
        """A chunk has ended and the text is `depth` tokens long."""
        self._depths.append(depth)
        self._times.append(time.perf_counter())
        if FIRST_LOOK <= depth < self._total:
            seconds = estimate(self._depths, self._times, self._total)
            if seconds > self._limit:
                raise _OverLimit(seconds, depth)


def estimate(depths: list[int], times: list[float], total: int) -> float:
    """Seconds that `total` tokens take, from the ends of the first chunks and when they were reached; 0 comes first.

    A token costs a constant and something for each token before it. The second is told from noise only over a long
    stretch, so before `SURE` tokens it counts as nothing and the estimate is a lower bound.
    """
    lengths = np.diff(depths)
    costs = np.diff(times) / lengths
    if depths[-1] < SURE:
        return float(np.median(costs)) * total
    middles = np.array(depths[:-1]) + lengths / 2
    slope, constant = np.polyfit(middles, costs, 1)
    if slope <= 0:
        return float(costs.mean()) * total
    return float(constant * total + slope * total**2 / 2)


def measure(request: CellRequest) -> Cell | TooSlow:
    """Measure one cell. Raises `ModelError` or `MachineError`."""
    engine = request.config.engine
    before = _free(engine)
    with loaded(request.config) as model:
        parts = shares(engine, recurrent=model.recurrent) if request.copies else 1
        slots = max(request.slots, parts)
        with opened(model, request.config, kv_type=engine.kv_type, n_ctx=engine.context, slots=slots) as context:
            try:
                cell = _fill_with_copies(context, request, parts) if request.copies else _fill(context, request)
            except _OverLimit as error:
                return error.verdict
            state = len(context.save(0).data) if model.recurrent else 0
            cell = msgspec.structs.replace(
                cell, rss=psutil.Process().memory_info().rss, device_bytes=before - _free(engine), state_bytes=state
            )
        return without_slots(cell, slots - request.slots, model.vocab.size)


def shares(engine: Engine, *, recurrent: bool) -> int:
    """Parts for copies: none shorter than a ubatch, or the compute buffers would be used in part only."""
    most = SHARES_OF_HYBRIDS if recurrent else MOST_SHARES
    return max(2, min(most, engine.context // engine.n_ubatch))


def _free(engine: Engine) -> int:
    return sum(card.free for card in devices_for(engine))


def without_slots(cell: Cell, slots: int, vocabulary: int) -> Cell:
    """The cell without what `slots` take: a row of logits each in RAM, a recurrent state each where the layers are."""
    logits, states = 4 * slots * vocabulary, slots * cell.state_bytes
    if cell.devices == ON_CPU:
        return msgspec.structs.replace(cell, rss=cell.rss - logits - states)
    return msgspec.structs.replace(cell, rss=cell.rss - logits, device_bytes=cell.device_bytes - states)


def _fill(context: Context, request: CellRequest) -> Cell:
    body = ids(request.haystack.body)
    watch = Watch(len(body), request.limit_seconds)
    feed(context, 0, body, watch)
    steps: list[float] = []
    recall = tuple(_ask(context, needle, steps) for needle in request.haystack.needles)
    return Cell(
        cells=context.n_ctx,
        filled=context.length(0),
        copies=False,
        devices=context.model.devices,
        prefill_rate=len(body) / watch.seconds,
        decode_rate=1 / median(steps),
        recall=recall,
    )


def _ask(context: Context, needle: Needle, steps: list[float]) -> Recall:
    """Ask for one needle at the end of the text, and add to `steps` the seconds of each decode of one row.

    The answer is fed as it should be, whatever the model says: greedy decoding reproduces it exactly when each of its
    tokens is the likeliest after the ones before, and a hybrid can't take a wrong answer back.
    """
    found, log_probs = True, []
    row = context.add(0, ids(needle.ask), context.length(0), logits=True)
    compute(context)
    for token in needle.answer:
        distribution = log_softmax(context.logits(row))
        found = found and int(distribution.argmax()) == token
        log_probs.append(float(distribution[token]))
        began = time.perf_counter()
        row = context.add(0, ids((token,)), context.length(0), logits=True)
        compute(context)
        steps.append(time.perf_counter() - began)
    return Recall(needle.depth, found, sum(log_probs) / len(log_probs))


def _fill_with_copies(context: Context, request: CellRequest, parts: int) -> Cell:
    """Fill all cells: one part is computed, copied into all others but the last, and computed once more there.

    The last one works with the whole cache before it and ends with logits, so that masks, buffers and weights are used
    as in a full context.
    """
    part = ids(request.haystack.body[: context.n_ctx // parts])
    feed(context, 0, part)
    checkpoint = context.save(0, whole=True)
    for slot in range(1, parts - 1):
        context.restore(slot, checkpoint)
    feed(context, parts - 1, part[:-1])
    context.add(parts - 1, part[-1:], context.length(parts - 1), logits=True)
    compute(context)
    return Cell(context.n_ctx, filled=len(part) * parts, copies=True, devices=context.model.devices)
