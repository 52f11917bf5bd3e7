"""A target and a model that drafts for it, driven slot by slot as a backend drives them, without a scheduler."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from forgelm.engine.drafter import ModelDrafter, State
from forgelm.engine.plan import NO_TOKENS, Ask, Decode, Draw, Span, Tokens
from forgelm.engine.sampling import draw_token
from forgelm.ipc.messages import Sampling
from forgelm.llama.context import Checkpoint, Context
from forgelm.llama.status import DecodeStatus

GREEDY = Sampling(temperature=0.0)


class Verified(NamedTuple):
    """What became of one slot's guesses."""

    guesses: list[int]
    drawn: list[int]
    """Tokens that are new in the sequence: the guesses that were right, and one more."""


class Saved(NamedTuple):
    tokens: list[int]
    checkpoint: Checkpoint
    state: State | None


class Pair:
    """Both memories, and the tokens of each slot: all but the newest are in the target's."""

    def __init__(self, target: Context, drafter: ModelDrafter, sampling: Sampling = GREEDY) -> None:
        self.target, self.sampling = target, sampling
        self.drafter: Any = drafter
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}

    def begin(self, slot: int, prompt: Sequence[int], chunk: int = 64, follow_from: int = 0) -> None:
        """Compute a prompt, or what of it the slot doesn't hold, in chunks, and draw the first token. The drafter is
        shown what comes after `follow_from`: it has the rest."""
        start = self.target.length(slot)
        while start < len(prompt):
            end = follow_from if start < follow_from else start + chunk
            part = np.array(prompt[start:end], np.int32)
            row = self.target.add(slot, part, start, logits=True)
            assert self.target.decode() is DecodeStatus.OK
            if start >= follow_from:
                self.drafter.follow(Decode((Span(slot, part, start, follows=True),)), (len(part),))
            start += len(part)
        self.tokens[slot], self.prompts[slot] = list(prompt), len(prompt)
        drawn = draw_token(self.target.logits(row), self._draw(slot))
        self.tokens[slot].append(drawn.token)

    def _draw(self, slot: int) -> Draw:
        tokens = np.array(self.tokens[slot], np.int32)
        return Draw(self.sampling, slot, len(tokens) - self.prompts[slot], tokens)

    def draft(self, depths: dict[int, int]) -> dict[int, Tokens]:
        """Ask for guesses."""
        asks = [Ask(slot, self._draw(slot), depth) for slot, depth in depths.items()]
        return dict(zip(depths, self.drafter.draft(asks), strict=True))

    def step(self, depths: dict[int, int]) -> dict[int, Verified]:
        """Guess, and let the target decide."""
        return self.verify(self.draft(depths))

    def verify(self, guesses: dict[int, Tokens], *, follows: bool = True) -> dict[int, Verified]:
        """Compute the newest token of each slot with guesses after it, and keep those that the target draws, too."""
        spans = [self._span(slot, tokens, follows) for slot, tokens in guesses.items()]
        rows = [self.target.add(s.slot, s.ahead[s.start :], s.start, logits=True, outputs=s.rows) for s in spans]
        assert self.target.decode() is DecodeStatus.OK
        results = {s.slot: self._decide(s, row - len(s.guesses)) for s, row in zip(spans, rows, strict=True)}
        kept = [len(results[span.slot].drawn) for span in spans]
        for span, count in zip(spans, kept, strict=True):
            self.target.trim(span.slot, span.start + count)
        self.drafter.follow(Decode(tuple(spans)), kept)
        return results

    def _span(self, slot: int, guesses: Tokens, follows: bool) -> Span:
        known = np.array(self.tokens[slot], np.int32)
        start = self.target.length(slot)
        return Span(slot, known[start:], start, self._draw(slot), guesses, np.concatenate((known, guesses)), follows)

    def _decide(self, span: Span, row: int) -> Verified:
        drawn: list[int] = []
        for at in range(len(span.guesses) + 1):
            drawn.append(draw_token(self.target.logits(row + at), self._draw(span.slot)).token)
            self.tokens[span.slot].append(drawn[-1])
            if at < len(span.guesses) and drawn[-1] != span.guesses[at]:
                break
        return Verified(span.guesses.tolist(), drawn)

    def fork(self, source: int, target: int, length: int) -> None:
        self.target.fork(source, target, length)
        self.drafter.fork(source, target, length)

    def trim(self, slot: int, length: int) -> None:
        self.target.trim(slot, length)
        self.drafter.trim(slot, length)

    def save(self, slot: int) -> Saved:
        self.target.settle(slot)
        return Saved(self.tokens[slot], self.target.save(slot, whole=True), self.drafter.save(slot))

    def restore(self, slot: int, saved: Saved) -> None:
        """Into an empty slot; its newest token isn't computed, as before."""
        self.target.restore(slot, saved.checkpoint)
        self.drafter.restore(slot, saved.state, saved.checkpoint.length)


def none(slots: Sequence[int]) -> dict[int, Tokens]:
    """No guesses."""
    return dict.fromkeys(slots, NO_TOKENS)
