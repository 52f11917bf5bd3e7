"""Guessing with a model's own next-token (MTP) head.

The head computes a row from a token and the target's hidden state at the position before it. So it can't catch up
alone: its rows come from the target's decodes, prompts at once, an answer's few rows with the next guess. What it
missed stays a gap in its positions, which costs nothing but guesses.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.engine.courses import LAZY, Course, answers, common, extend, like
from forgelm.engine.drafter import State
from forgelm.engine.plan import Ask, Decode, Span, Tokens
from forgelm.errors import ModelError
from forgelm.llama.context import Context
from forgelm.llama.model import Model
from forgelm.llama.mtp import HeadContext
from forgelm.llama.nextn import States, enable_hidden_states, hidden_states, state_width
from forgelm.llama.status import DecodeStatus

Hidden = npt.NDArray[np.float32]
"""One hidden state, shape (width,)."""
_PREFIX = np.dtype([("end", "<i8"), ("known", "<i8")])
"""What stands before a saved state: its length, and whether the last hidden state was known."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that the target has computed and the head hasn't: tokens, and the states before them."""

    start: int
    tokens: Tokens
    states: States

    def before(self, length: int) -> "_Rows":
        count = max(length - self.start, 0)
        return _Rows(self.start, self.tokens[:count], self.states[:count])

    def state_at(self, position: int) -> Hidden | None:
        """The state before `position`."""
        return self.states[position - self.start] if 0 <= position - self.start < len(self.tokens) else None


@dataclass(slots=True)
class _Held:
    """What is known of one slot."""

    end: int = 0
    """The position after its last row, fed or waiting."""
    last: Hidden | None = None
    """The target's hidden state of the row before `end`; None where it isn't known, which zeros stand for."""
    waiting: list[_Rows] = field(default_factory=list)
    fed: int = 0
    """The position after the last row in memory that the target has computed, too; 0 if there is none."""
    guessed: list[int] = field(default_factory=list)
    """Tokens in memory after it: the sequence's newest one, which the target computes with the guesses."""

    @property
    def count(self) -> int:
        return sum(len(rows.tokens) for rows in self.waiting)

    def before(self, length: int) -> "_Held":
        """The same of its first `length` tokens, nothing guessed."""
        if length >= self.end:
            return _Held(self.end, self.last, list(self.waiting), self.fed)
        states = (rows.state_at(length) for rows in self.waiting)
        waiting = [part for rows in self.waiting if len((part := rows.before(length)).tokens)]
        last = next((state for state in states if state is not None), None)
        return _Held(length, last, waiting, min(self.fed, length))


class MtpDrafter:
    """A `ModelDrafter`. Attention alone, so that it can be cut and forked anywhere."""

    def __init__(
        self,
        target: Context,
        *,
        head: Path | None = None,
        n_gpu_layers: int = 0,
        devices: tuple[tuple[str, Any], ...] = (),
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        """For the model of `target`, whose hidden states are switched on. `head` is a file with the head alone, to be
        loaded on `devices`; None: the model was loaded with its own. Close it before `target`. Raises
        `ModelError`."""
        self._target = target
        self._own = None
        if head is not None:
            self._own = Model.load(head, n_gpu_layers=n_gpu_layers, devices=devices, progress=progress, load_mtp=True)
        try:
            self._context = _open(target, self._own or target.model)
        except ModelError:
            self._close_model()
            raise
        self._adding: dict[int, int] = {}
        """Of the batch: where the rows that the target has computed end, by slot."""
        self._held = [_Held() for _ in range(target.options.slots)]
        self._ends = frozenset(target.model.vocab.end_tokens())
        enable_hidden_states(target)

    @property
    def name(self) -> str:
        return "mtp"

    def close(self) -> None:
        self._context.close()
        self._close_model()

    def _close_model(self) -> None:
        if self._own is not None:
            self._own.close()

    # --- memory ---

    def fork(self, source: int, target: int, length: int) -> None:
        origin = self._held[source]
        self._held[target] = origin.before(length)
        if origin.fed:
            self._context.fork(source, target, min(length, origin.fed))

    def trim(self, slot: int, length: int) -> None:
        held = self._held[slot]
        if length < held.end or held.guessed:
            self._held[slot] = held.before(length)
            self._context.cut(slot, min(length, held.fed))

    def save(self, slot: int) -> State | None:
        self._feed([slot])
        self._uncover(slot)
        held = self._held[slot]
        if not held.fed:
            return None
        prefix = np.array([(held.end, held.last is not None)], _PREFIX)
        return np.concatenate((prefix.view(np.uint8), self._state(held).view(np.uint8), self._context.save(slot)))

    def restore(self, slot: int, state: State | None, length: int) -> None:
        if state is None:
            return
        end, known = state[: _PREFIX.itemsize].view(_PREFIX)[0].tolist()
        at = _PREFIX.itemsize + 4 * self._context.width
        last = state[_PREFIX.itemsize : at].view(np.float32).copy() if known else None
        if self._context.restore(slot, state[at:].copy()):
            self._held[slot] = _Held(end, last, fed=end)

    def _wipe(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._held[slot] = _Held()
            self._context.cut(slot, 0)

    def _uncover(self, slot: int) -> None:
        """Drop what was guessed."""
        held = self._held[slot]
        if held.guessed:
            held.guessed = []
            self._context.cut(slot, held.end)

    def _state(self, held: _Held) -> Hidden:
        return np.zeros(self._context.width, np.float32) if held.last is None else held.last

    # --- following the target ---

    def follow(self, decode: Decode, kept: Sequence[int]) -> None:
        if not any(span.follows for span in decode.spans):
            return
        hidden, at = hidden_states(self._target, decode.rows), 0
        for span, count in zip(decode.spans, kept, strict=True):
            if span.follows and count:
                self._append(span, hidden[at : at + count])
            at += span.rows
        self._feed([span.slot for span in decode.spans if self._held[span.slot].count > LAZY])

    def _append(self, span: Span, hidden: States) -> None:
        """Note the rows of `span` that stayed, whose states are `hidden`, shape (count, width)."""
        self._skip(span.slot, span.start)
        held = self._held[span.slot]
        tokens = np.concatenate((span.tokens, span.guesses))[: len(hidden)]
        right = common(held.guessed, tokens)
        if right < len(held.guessed):
            self._uncover(span.slot)
        states = np.concatenate((self._state(held)[None], hidden[:-1]))
        if right < len(tokens):
            held.waiting.append(_Rows(span.start + right, tokens[right:], states[right:]))
        held.guessed = []
        held.end += len(tokens)
        held.fed = max(held.fed, span.start + right if right else 0)
        held.last = hidden[-1].copy()

    def _skip(self, slot: int, start: int) -> None:
        """Go on at `start`, wherever the slot ended."""
        held = self._held[slot]
        if start < held.end:
            self.trim(slot, start)
        elif start > held.end:
            self._uncover(slot)
            held.end, held.last = start, None

    def _feed(self, slots: Iterable[int]) -> None:
        """Compute what waits in `slots`. Rows that there is no room for are left out."""
        batch = self._context.batch
        for slot in slots:
            held = self._held[slot]
            waiting, held.waiting = held.waiting, []
            for rows in waiting:
                at = 0
                while at < len(rows.tokens):
                    at += self._add(slot, rows, at)
                    if batch.size == batch.capacity:
                        self._decode()
        if batch.size:
            self._decode()

    def _add(self, slot: int, rows: _Rows, at: int) -> int:
        """Put as many of `rows` from the one at `at` into the batch as it takes; their number."""
        count = min(len(rows.tokens) - at, self._context.batch.capacity - self._context.batch.size)
        part = slice(at, at + count)
        self._context.add(slot, rows.tokens[part], rows.states[part], rows.start + at, logits=False)
        self._adding[slot] = rows.start + at + count
        return count

    def _decode(self) -> DecodeStatus:
        """Run the batch. After a failure that can't be trusted its slots are empty."""
        slots, adding, self._adding = list(self._context.batch.counts), self._adding, {}
        status = self._context.decode()
        if status is DecodeStatus.OK:
            for slot, fed in adding.items():
                self._held[slot].fed = fed
        elif status.taints:
            self._wipe(slots)
        return status

    # --- guessing ---

    def draft(self, asks: Sequence[Ask]) -> tuple[Tokens, ...]:
        ready = [ask for ask in asks if ask.depth > 0 and self._held[ask.slot].end == len(ask.draw.tokens) - 1]
        for ask in ready:
            self._uncover(ask.slot)
        if len(ready) + sum(self._held[ask.slot].count for ask in ready) > self._context.batch.capacity:
            self._feed([ask.slot for ask in ready])
        courses = {ask.slot: Course(ask, ask.slot, self._begin(ask)) for ask in ready}
        if not courses or self._decode() is not DecodeStatus.OK:
            return answers(asks, {})
        for ask in ready:
            held = self._held[ask.slot]
            held.waiting, held.guessed = [], [int(ask.draw.tokens[-1])]
        if extend(list(courses.values()), self._context, self._go_on, self._ends).taints:
            self._wipe(courses)
        for slot in courses:
            # What the head made of its own states is computed again from the target's.
            self._context.cut(slot, self._held[slot].end + 1)
        return answers(asks, courses)

    def _begin(self, ask: Ask) -> int:
        """Put what waits and the newest token into the batch; the last row."""
        held = self._held[ask.slot]
        for rows in held.waiting:
            self._add(ask.slot, rows, 0)
        newest = ask.draw.tokens[-1:]
        return self._context.add(ask.slot, newest, self._state(held)[None], held.end, logits=True)

    def _go_on(self, course: Course) -> int:
        """Put the newest guess into the batch; its row."""
        state = self._context.state(course.row)
        return self._context.add(course.slot, course.newest, state[None], course.end, logits=True)


def _open(target: Context, model: Model) -> HeadContext:
    if state_width(model.handle) != state_width(target.model.handle):
        raise ModelError("the next-token head is for hidden states of another width")
    return HeadContext(model, like(target))
