"""What a model that drafts has to do: keep up with the target's memory, and guess.

Its own memory mirrors the target's slot by slot: what is forked, cut, saved and loaded there is so here. It may know
less of a slot than the target does, never anything else; what it lacks it computes before it guesses, or guesses worse.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Ask, Decode, Tokens

State = npt.NDArray[np.uint8]
"""Opaque, shape (bytes,)."""


class ModelDrafter(Protocol):
    """A draft model or a model's own next-token head. Owned by the backend; one thread."""

    @property
    def name(self) -> str:
        """ "draft" or "mtp"."""

    def fork(self, source: int, target: int, length: int) -> None:
        """The empty slot `target` shares the first `length` tokens of `source` from now on."""

    def trim(self, slot: int, length: int) -> None:
        """The first `length` tokens of `slot` are left."""

    def save(self, slot: int) -> State | None:
        """What is known of `slot`; None where that is nothing."""

    def restore(self, slot: int, state: State | None, length: int) -> None:
        """The empty `slot` holds `length` tokens from now on, with the state that was saved with them."""

    def follow(self, decode: Decode, kept: Sequence[int]) -> None:
        """The target has just computed `decode`, and `kept` rows of each span are in its memory."""

    def draft(self, asks: Sequence[Ask]) -> tuple[Tokens, ...]:
        """Guesses for each of `asks`, shape (k,), 0 ≤ k ≤ depth; none where it knows too little of the slot yet."""

    def close(self) -> None:
        """Give everything back."""
