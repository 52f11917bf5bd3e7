"""Free slots, of two kinds: those whose tokens come with a whole row of logits, and those with the highest alone.

The second kind is cheaper to draw from and does for most requests; whoever needs whole rows must have the first.
"""


class Slots:
    """Owned by the engine's memory."""

    def __init__(self, count: int, whole: int | None = None) -> None:
        """Slots below `whole` are of the first kind; None: all are."""
        self._first = count if whole is None else whole
        self._whole = list(reversed(range(self._first)))
        self._ranked = list(reversed(range(self._first, count)))
        self._one_kind = self._first >= count

    @property
    def free(self) -> list[int]:
        """All of them."""
        return [*self._whole, *self._ranked]

    def has_whole_rows(self, slot: int) -> bool:
        """Whether `slot` is of the first kind."""
        return slot < self._first

    def suits(self, slot: int, *, whole: bool) -> bool:
        """Whether `slot` is of the kind that is best for a request that needs `whole` rows, or doesn't."""
        return self._one_kind or self.has_whole_rows(slot) == whole

    def take(self, *, whole: bool) -> int | None:
        """A free slot that will do; None if there is none."""
        if not whole and self._ranked:
            return self._ranked.pop()
        return self._whole.pop() if self._whole else None

    def take_best(self, *, whole: bool) -> int | None:
        """A free slot of the best kind."""
        slots = self._whole if whole or self._one_kind else self._ranked
        return slots.pop() if slots else None

    def give_back(self, slot: int) -> None:
        """`slot` is wiped, or will be before it is used."""
        (self._whole if self.has_whole_rows(slot) else self._ranked).append(slot)
