"""Keeps a side process alive, and hands what it says to whoever has requests in it."""

from typing import Protocol

from forgelm.ipc.embeddings import EmbedderFacts, EmbedderReady, Unusable, Vectors, decode_from_embedder
from forgelm.ipc.registry import Kind
from forgelm.supervisor import Command, Keeper, Owner


class SideOwner(Owner, Protocol):
    """Whoever has requests in a side process."""

    def on_vectors(self, vectors: Vectors) -> None:
        """What a decode gave."""

    def on_unusable(self, request: int, reason: str) -> None:
        """A request gets nothing more: one of its texts has no vector."""


class SideKeeper(Keeper[SideOwner]):
    """One side process."""

    facts: EmbedderFacts | None = None
    """Of the model, once it was loaded."""

    def __init__(self, kind: Kind, command: Command, owner: SideOwner, hang_seconds: float) -> None:
        super().__init__(command, owner, hang_seconds)
        self.name = f"{kind} model"

    def _receive(self, body: bytes) -> None:
        match decode_from_embedder(body):
            case Vectors() as vectors:
                self._progress(self._hang_seconds)
                self._listener.on_vectors(vectors)
            case Unusable(request, reason):
                self._listener.on_unusable(request, reason)
            case EmbedderReady(facts):
                self.facts = facts
                self._on_ready(facts.description, facts.load_seconds)
            case message:
                self._on_common(message)
