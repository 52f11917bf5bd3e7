"""What to give up, and in which order, until a model fits.

Each rung makes one setting smaller and none ever makes one larger. The order is by what a user notices: 8-bit keys
and values first, then finished conversations kept ready, up to half of the context, requests at once, 4-bit keys and
values, the rest of the context, and layers on the GPU last, since each one on the CPU slows every token. Speculation
has gone before the first of them: see `verdict`.
"""

from collections.abc import Callable, Iterator

import msgspec

from forgelm.config import Cache, Engine
from forgelm.fit.budget import Budget
from forgelm.fit.need import NONE, Need, Speculation, need
from forgelm.fit.shapes import Shape

SHORTEST = 4096
"""Tokens of context below which a rung doesn't go."""
CONTEXT_STEP = 1024
_PRECISION = {"f16": 2, "bf16": 2, "q8_0": 1, "q4_0": 0}


class Setting(msgspec.Struct, frozen=True):
    """What the ladder changes."""

    engine: Engine
    cache: Cache


class Fitted(msgspec.Struct, frozen=True):
    """Where the ladder ended."""

    setting: Setting
    need: Need
    fits: bool
    steps: tuple[str, ...] = ()
    """What was given up, for people."""


class Ladder:
    """The ladder for one model on one machine."""

    def __init__(self, shape: Shape, budget: Budget, speculation: Speculation = NONE) -> None:
        self.shape = shape
        self.budget = budget
        self.speculation = speculation

    def need(self, setting: Setting) -> Need:
        """What `setting` takes."""
        return need(self.shape, setting.engine, setting.cache, cards=self.budget.cards, speculation=self.speculation)

    def holds(self, setting: Setting) -> bool:
        """Whether `setting` fits."""
        return self.budget.holds(self.need(setting))

    def descend(self, wanted: Setting, pinned: frozenset[str] = frozenset()) -> Fitted:
        """The first setting that fits, going down from `wanted` without touching what is `pinned`.

        Names in `pinned` are keys of a profile (`engine.context`). When even the lowest doesn't fit, that one is
        returned with `fits` false.
        """
        setting = wanted
        for key, rung in RUNGS:
            if self.holds(setting):
                break
            if key not in pinned:
                setting = rung(self, setting)
        return Fitted(setting, self.need(setting), self.holds(setting), tuple(_changes(self.shape, wanted, setting)))

    def largest_context(self, setting: Setting) -> int:
        """The longest context, in tokens, that fits with the other settings as they are; 0 when none does."""
        most = self.shape.context_train * setting.engine.parallel
        return self._largest(setting, 0, most)

    def _largest(self, setting: Setting, low: int, high: int) -> int:
        """The largest context in steps between `low` and `high` that fits; `low` when none does."""
        below, above = low // CONTEXT_STEP, high // CONTEXT_STEP + 1
        while above - below > 1:
            middle = (below + above) // 2
            if self.holds(_with_context(setting, middle * CONTEXT_STEP)):
                below = middle
            else:
                above = middle
        return max(low, below * CONTEXT_STEP)

    def shorten(self, setting: Setting, floor: int) -> Setting:
        """The longest context from `floor` up that fits, or `floor`; never longer than now."""
        now = setting.engine.context
        return setting if floor >= now else _with_context(setting, self._largest(setting, floor, now - 1))

    def first_that_fits(self, setting: Setting, smaller: Iterator[Setting]) -> Setting:
        """The first of `smaller` that fits, else the last."""
        last = setting
        for last in smaller:
            if self.holds(last):
                break
        return last


Rung = Callable[[Ladder, Setting], Setting]
"""From a setting to a smaller one, or to the same."""


def _with_context(setting: Setting, context: int) -> Setting:
    return _with_engine(setting, context=context)


def _with_engine(setting: Setting, **changes: int | str) -> Setting:
    return msgspec.structs.replace(setting, engine=msgspec.structs.replace(setting.engine, **changes))


def _kv_type(kv_type: str) -> Rung:
    def rung(ladder: Ladder, setting: Setting) -> Setting:
        engine = setting.engine
        if engine.flash_attention == "off" or _PRECISION[engine.kv_type] <= _PRECISION[kv_type]:
            return setting
        smaller = _with_engine(setting, kv_type=kv_type)
        # With one or two attention layers on a GPU, the f16 copy of one outweighs what is saved.
        before, after = ladder.need(setting), ladder.need(smaller)
        return smaller if after.gpu + after.host < before.gpu + before.host else setting

    return rung


def _kept(ladder: Ladder, setting: Setting) -> Setting:
    kept = setting.cache.kept_sequences(setting.engine.parallel, recurrent=ladder.shape.recurrent)
    fewer = (
        msgspec.structs.replace(setting, cache=msgspec.structs.replace(setting.cache, sequences=count))
        for count in _halves(kept)
    )
    return ladder.first_that_fits(setting, fewer)


def _half_context(ladder: Ladder, setting: Setting) -> Setting:
    half = min(setting.engine.context // 2, ladder.shape.context_train)
    return ladder.shorten(setting, max(SHORTEST, half))


def _parallel(ladder: Ladder, setting: Setting) -> Setting:
    fewer = (_with_engine(setting, parallel=count) for count in _halves(setting.engine.parallel))
    return ladder.first_that_fits(setting, fewer)


def _short_context(ladder: Ladder, setting: Setting) -> Setting:
    return ladder.shorten(setting, SHORTEST)


def _layers(ladder: Ladder, setting: Setting) -> Setting:
    if not ladder.budget.cards:
        return setting
    fewer = (_with_engine(setting, n_gpu_layers=count) for count in range(on_gpu(ladder.shape, setting) - 1, 0, -1))
    return ladder.first_that_fits(setting, fewer)


RUNGS: tuple[tuple[str, Rung], ...] = (
    ("engine.kv_type", _kv_type("q8_0")),
    ("cache.sequences", _kept),
    ("engine.context", _half_context),
    ("engine.parallel", _parallel),
    ("engine.kv_type", _kv_type("q4_0")),
    ("engine.context", _short_context),
    ("engine.n_gpu_layers", _layers),
)
"""From the top down, with the setting each one makes smaller."""


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        count //= 2
        yield count


def on_gpu(shape: Shape, setting: Setting) -> int:
    """Layers that go on the GPU, the output matrix counted as one."""
    asked, most = setting.engine.n_gpu_layers, shape.last_layer + 1
    return most if asked < 0 else min(asked, most)


def _changes(shape: Shape, before: Setting, after: Setting) -> Iterator[str]:
    old, new = before.engine, after.engine
    if old.kv_type != new.kv_type:
        yield f"KV type {old.kv_type} → {new.kv_type}"
    if old.context != new.context:
        yield f"context {old.context:,} → {new.context:,}"
    if old.parallel != new.parallel:
        yield f"requests at once {old.parallel} → {new.parallel}"
    kept = [s.cache.kept_sequences(s.engine.parallel, recurrent=shape.recurrent) for s in (before, after)]
    if kept[0] != kept[1]:
        yield f"kept sequences {kept[0]} → {kept[1]}"
    if old.n_gpu_layers != new.n_gpu_layers:
        yield f"layers on the GPU {on_gpu(shape, before)} → {on_gpu(shape, after)}"
