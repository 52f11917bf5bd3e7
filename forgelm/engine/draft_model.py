"""Guessing with a smaller model that has the target's vocabulary, in a context of its own.

What it computes needs nothing of the target but its tokens, so whatever it lacks of a slot it can catch up on. Rows of
guesses stay until the target has decided about them: those that were right needn't be computed again. A recurrent draft
model can't be cut; it guesses in a copy of the slot.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from forgelm.engine.courses import LAZY, Course, answers, common, extend, like
from forgelm.engine.drafter import State
from forgelm.engine.plan import NO_TOKENS, Ask, Decode, Span, Tokens
from forgelm.errors import ModelError
from forgelm.llama.context import Checkpoint, Context, NoRoom
from forgelm.llama.matching import vocabulary_difference
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus

CATCH_UP = 256
"""Rows of one call that slots may catch up with."""


@dataclass(slots=True)
class _Held:
    """What is known of one slot."""

    target: int = 0
    """Tokens that the target's slot has."""
    sure: int = 0
    """How many of them are in memory."""
    guessed: list[int] = field(default_factory=list)
    """Tokens in memory after these, where they are all: the sequence's newest ones and guesses."""
    waiting: Tokens = field(default_factory=lambda: NO_TOKENS)
    """Tokens after `sure` that the target has."""

    @property
    def next(self) -> int:
        """Where the tokens end that are in memory or wait."""
        return self.sure + len(self.waiting)


class DraftModelDrafter:
    """A `ModelDrafter`."""

    def __init__(
        self,
        path: Path,
        target: Context,
        *,
        asks: int,
        n_gpu_layers: int = 0,
        devices: tuple[tuple[str, Any], ...] = (),
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        """Load `path` on `devices`, to guess for the model of `target`, in at most `asks` slots at once.

        Raises `ModelError`, also where the vocabularies differ.
        """
        self._model = Model.load(path, n_gpu_layers=n_gpu_layers, devices=devices, progress=progress)
        try:
            problem = vocabulary_difference(target.model, self._model)
            if problem:
                raise ModelError(f"{path} can't draft for this model: {problem}")
            options = like(target)
            self._scratch = range(options.slots, options.slots + asks) if self._model.recurrent else range(0)
            self._context = Context(self._model, replace(options, slots=options.slots + len(self._scratch)))
        except ModelError:
            self._model.close()
            raise
        self._held = [_Held() for _ in range(options.slots)]
        self._ends = frozenset(target.model.vocab.end_tokens())

    @property
    def name(self) -> str:
        return "draft"

    def close(self) -> None:
        self._context.close()
        self._model.close()

    # --- memory ---

    def fork(self, source: int, target: int, length: int) -> None:
        origin = self._held[source]
        if self._model.recurrent and length <= origin.next:
            self._feed([source])
            origin = self._held[source]
        sure = min(length, origin.sure)
        if self._model.recurrent and sure < origin.sure:
            # A recurrent state is of one length.
            sure = 0
        waiting = origin.waiting[: length - sure] if sure == origin.sure else NO_TOKENS
        if sure:
            self._context.fork(source, target, sure)
        self._held[target] = _Held(length, sure, waiting=waiting)

    def trim(self, slot: int, length: int) -> None:
        held = self._held[slot]
        if length >= held.target:
            return
        self._uncover(slot)
        held.target = length
        held.waiting = held.waiting[: max(length - held.sure, 0)]
        if length < held.sure:
            held.sure = 0 if self._model.recurrent else length
            self._context.trim(slot, held.sure)

    def save(self, slot: int) -> State | None:
        self._uncover(slot)
        self._feed([slot])
        held = self._held[slot]
        if not held.sure:
            return None
        return np.concatenate((np.array([held.sure], "<i8").view(np.uint8), self._context.save(slot, whole=True).data))

    def restore(self, slot: int, state: State | None, length: int) -> None:
        self._held[slot].target = length
        if state is None:
            return
        saved = int(state[:8].view("<i8")[0])
        try:
            self._context.restore(slot, Checkpoint(saved, False, state[8:].copy()))
        except NoRoom:
            return
        self._held[slot].sure = saved

    def _wipe(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._context.trim(slot, 0)
            if slot < len(self._held):
                self._held[slot] = _Held(self._held[slot].target)

    def _uncover(self, slot: int, right: int = 0) -> None:
        """Drop what was guessed but for the first `right` tokens."""
        held = self._held[slot]
        if len(held.guessed) > right:
            del held.guessed[right:]
            self._context.trim(slot, held.sure + right)

    # --- following the target ---

    def follow(self, decode: Decode, kept: Sequence[int]) -> None:
        for span, count in zip(decode.spans, kept, strict=True):
            if count:
                self._append(span, np.concatenate((span.tokens, span.guesses))[:count])
        self._feed([span.slot for span in decode.spans if len(self._held[span.slot].waiting) > LAZY])

    def _append(self, span: Span, tokens: Tokens) -> None:
        """Note that the target has `tokens`, those rows of `span` that stayed."""
        held = self._held[span.slot]
        if held.next == span.start:
            right = common(held.guessed, tokens)
            if right < len(tokens):
                self._uncover(span.slot, right)
            held.guessed = held.guessed[right:]
            held.sure += right
            if span.follows:
                held.waiting = np.concatenate((held.waiting, tokens[right:]))
        held.target = span.start + len(tokens)

    def _feed(self, slots: Sequence[int]) -> None:
        """Compute what waits in `slots`. What there is no room for is caught up with later."""
        for slot in slots:
            held = self._held[slot]
            waiting, held.waiting, at = held.waiting, NO_TOKENS, held.sure
            while len(waiting):
                part = waiting[: self._room]
                if len(part):
                    self._context.add(slot, part, at, logits=False)
                waiting, at = waiting[len(part) :], at + len(part)
                if not self._room and self._decode() is not DecodeStatus.OK:
                    break
        if self._context.batch.size:
            self._decode()
        for slot in slots:
            self._held[slot].sure = self._context.length(slot)

    @property
    def _room(self) -> int:
        """Rows that the batch still takes."""
        return self._context.batch.capacity - self._context.batch.size

    def _decode(self) -> DecodeStatus:
        """Run the batch. After a failure that can't be trusted its slots are empty."""
        slots = list(self._context.batch.counts)
        status = self._context.decode()
        if status.taints:
            self._lose(slots)
        return status

    def _lose(self, slots: Iterable[int]) -> None:
        """Wipe slots of a decode that failed, on a recurrent model all: it moves the states of others, too."""
        self._wipe(range(len(self._held) + len(self._scratch)) if self._model.recurrent else slots)

    # --- guessing ---

    def draft(self, asks: Sequence[Ask]) -> tuple[Tokens, ...]:
        courses: dict[int, Course] = {}
        room = min(CATCH_UP, self._context.batch.capacity)
        # Those that lack least first, so that one that lacks much doesn't keep the others from guessing.
        wanted = [ask for ask in asks if ask.depth > 0]
        for ask in sorted(wanted, key=lambda ask: len(ask.draw.tokens) - self._context.length(ask.slot)):
            begin = self._begin_copy if self._model.recurrent else self._begin
            room -= begin(ask, room, courses)
        if self._context.batch.size and self._decode() is DecodeStatus.OK:
            going = list(courses.values())
            if extend(going, self._context, self._go_on, self._ends).taints:
                self._lose(course.slot for course in going)
        else:
            courses = {}
        for ask in wanted:
            self._note(ask, courses.get(ask.slot))
        for slot in self._scratch:
            self._context.trim(slot, 0)
        return answers(asks, courses)

    def _begin(self, ask: Ask, room: int, courses: dict[int, Course]) -> int:
        """Put what `ask`'s slot lacks into the batch, at most `room` rows, and begin its course if that is all; the
        number of rows."""
        slot, held, tokens = ask.slot, self._held[ask.slot], ask.draw.tokens
        # The last row is computed again even where it was guessed: its logits are gone.
        self._uncover(slot, common(held.guessed, tokens[held.target : -1]))
        start = self._context.length(slot)
        part = tokens[start : start + room]
        if not len(part):
            return 0
        whole = start + len(part) == len(tokens)
        row = self._context.add(slot, part, start, logits=whole)
        if whole:
            courses[slot] = Course(ask, slot, row)
        return len(part)

    def _begin_copy(self, ask: Ask, room: int, courses: dict[int, Course]) -> int:
        """The same for a recurrent model: the slot gets the target's own tokens alone, and a copy of it guesses."""
        slot, held, tokens = ask.slot, self._held[ask.slot], ask.draw.tokens
        start = self._context.length(slot)
        behind, missing = tokens[start : held.target], tokens[start:]
        no_copy = len(courses) == len(self._scratch)
        if no_copy or len(behind) > LAZY or len(behind) + len(missing) > room:
            behind, missing = behind[:room], NO_TOKENS
        if len(missing):
            copy = self._scratch[len(courses)]
            if start:
                self._context.fork(slot, copy, start)
            courses[slot] = Course(ask, copy, self._context.add(copy, missing, start, logits=True))
        if len(behind):
            self._context.add(slot, behind, start, logits=False)
        return len(behind) + len(missing)

    def _go_on(self, course: Course) -> int:
        """Put the newest guess into the batch; its row."""
        return self._context.add(course.slot, course.newest, course.end, logits=True)

    def _note(self, ask: Ask, course: Course | None) -> None:
        """Take down what the slot holds now."""
        held, length = self._held[ask.slot], self._context.length(ask.slot)
        tokens = ask.draw.tokens if course is None else np.concatenate((ask.draw.tokens, course.guesses))
        if length > held.sure:
            held.waiting = NO_TOKENS
        held.sure = min(length, held.target)
        held.guessed = tokens[held.target : length].tolist()
