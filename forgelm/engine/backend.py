"""The one thing the engine's loop needs from a model: run a plan. Implemented by llama.cpp and by a fake."""

from collections.abc import Callable, Sequence
from typing import Protocol

from forgelm.engine.plan import Ask, Drafts, Matcher, Outcome, Plan
from forgelm.engine.prefix import Kept
from forgelm.ipc.messages import Constraint, ModelFacts


class Backend(Protocol):
    """Runs plans. Holds no opinion about requests."""

    @property
    def facts(self) -> ModelFacts:
        """What the loaded model is and can hold."""

    @property
    def splits_batches(self) -> bool:
        """Whether decode rows and prefill rows go in decodes of their own: hybrids must, CPUs are faster so."""

    @property
    def whole_slots(self) -> int | None:
        """Slots from this one on give only the `CANDIDATES` highest logits of a row; None: all give whole rows."""

    @property
    def open_grammar(self) -> Callable[[Constraint], Matcher] | None:
        """Begins to compile a grammar of the model's tokens; None where there are none."""

    @property
    def draft_rows(self) -> int:
        """Guessed rows that a step may have in all; 0 where nothing is to be guessed."""

    @property
    def row_seconds(self) -> dict[int, float]:
        """What decodes of so many rows, each drawn from, took at the start: rows → seconds. May be empty."""

    def draft(self, asks: Sequence[Ask]) -> Drafts:
        """Ask the model that drafts, between two plans."""

    def archived(self) -> list[Kept]:
        """What a former process left on disk for this model."""

    def run(self, plan: Plan) -> Outcome:
        """Carry out the plan's operations in order.

        After a decode that isn't OK the operations that follow are still carried out, except decodes: the outcome then
        has fewer results than the plan has decodes. After a restore that found no room only `Drop`, `Archive` and
        `Fetch` are. Sequences of a decode whose status taints are the caller's to wipe.
        """

    def spare(self, cores: int) -> None:
        """Compute with so many threads less than at the start, with one at least."""

    def close(self) -> None:
        """Give everything back."""
