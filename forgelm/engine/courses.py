"""Guesses on their way: tokens that a drafting model adds to several sequences at once, one decode for each depth.

Drawn as the target will draw them, with the same random numbers and penalties, so that the two agree as often as their
distributions let them. Grammars are left out: what they forbid is filtered when the guesses are used.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from forgelm.engine.plan import NO_TOKENS, Ask, Drawn, Tokens
from forgelm.engine.sampling import draw_token
from forgelm.llama.context import Context, ContextOptions, Logits
from forgelm.llama.status import DecodeStatus

LAZY = 16
"""Rows of a slot that wait for the next guess and go into its first decode; more of them are computed at once."""


class Drafting(Protocol):
    """The context of a model that drafts."""

    def logits(self, row: int) -> Logits: ...

    def decode(self) -> DecodeStatus: ...


class Course:
    """The guesses of one ask. `slot` is where its rows are computed, `row` the batch row of the last one."""

    def __init__(self, ask: Ask, slot: int, row: int) -> None:
        self.slot, self.row = slot, row
        self._first = replace(ask.draw, matcher=None, logprobs=-1)
        self._known, self._depth, self._count = len(ask.draw.tokens), ask.depth, 0
        self._tokens = np.empty(self._known + ask.depth, np.int32)
        self._tokens[: self._known] = ask.draw.tokens
        self._mu = ask.draw.mu

    @property
    def guesses(self) -> Tokens:
        """Shape (k,)."""
        return self._tokens[self._known : self._known + self._count]

    @property
    def newest(self) -> Tokens:
        """The last guess, shape (1,)."""
        return self.guesses[-1:]

    @property
    def end(self) -> int:
        """The position of the last guess."""
        return self._known + self._count - 1

    def take(self, model: Drafting, ends: Collection[int]) -> bool:
        """Draw the next guess from the row computed last; says whether another one shall follow it. Nothing does after
        one of `ends`."""
        drawn = self._draw(model)
        if drawn.token < 0:
            return False
        self._tokens[self._known + self._count] = drawn.token
        self._count += 1
        self._mu = drawn.mu
        return self._count < self._depth and drawn.token not in ends

    def _draw(self, model: Drafting) -> Drawn:
        draw = self._first
        if self._count:
            draw = draw.then(self._tokens[: self._known + self._count], self._mu)
        return draw_token(model.logits(self.row), draw)


def extend(
    courses: Sequence[Course], model: Drafting, add: Callable[[Course], int], ends: Collection[int]
) -> DecodeStatus:
    """Draw guesses until every course has enough. Each but its last one is put into the next batch by `add`, which
    returns its row. Ends at a decode that fails, with its status."""
    going = [course for course in courses if course.take(model, ends)]
    while going:
        for course in going:
            course.row = add(course)
        status = model.decode()
        if status is not DecodeStatus.OK:
            return status
        going = [course for course in going if course.take(model, ends)]
    return DecodeStatus.OK


def answers(asks: Sequence[Ask], courses: dict[int, Course]) -> tuple[Tokens, ...]:
    """The guesses in the order of `asks`; `courses` by the slots asked for."""
    return tuple(courses[ask.slot].guesses if ask.slot in courses else NO_TOKENS for ask in asks)


def like(target: Context) -> ContextOptions:
    """The options of a context that mirrors `target`: as many cells and slots."""
    return replace(
        target.options, n_ctx=target.n_ctx, unified=True, rollback_rows=0, draft_rows=0, ranked_slots=range(0)
    )


def common(guessed: Sequence[int], tokens: Tokens) -> int:
    """How many of `guessed` are what `tokens` begin with."""
    at = 0
    for guess, token in zip(guessed, tokens.tolist(), strict=False):
        if guess != token:
            break
        at += 1
    return at
