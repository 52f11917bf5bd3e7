"""What the engine process is started with: everything found and decided; its parent sends it as JSON."""

from forgelm.config import MAX_DEPTH, Cache, Engine, Section

LOGITS_BYTES = 16 * 2**20
"""What the logits of a step's guessed rows may take, on the host and on the device."""


class Drafting(Section, frozen=True):
    """Speculation as the engine process gets it: everything found and decided."""

    ngram: bool = False
    mtp: str = ""
    """Path of the file with the next-token head, the model's own or another; "" uses none."""
    draft: str = ""
    """Path of the draft model; "" uses none."""
    depth: int = 0
    """The most tokens guessed at once; 0 lets the measured gain decide."""
    adaptive: bool = True
    rollback: int = 0
    """Recurrent models: states kept per sequence to go back to, and the most tokens guessed at once."""

    @property
    def on(self) -> bool:
        return self.ngram or bool(self.mtp or self.draft)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of those that are used."""
        used = {"ngram": self.ngram, "draft": self.draft, "mtp": self.mtp}
        return tuple(name for name, value in used.items() if value)

    def rows(self, vocabulary: int, parallel: int, *, recurrent: bool) -> int:
        """Guessed rows that a step may have in all: as many as can be rolled back, and their logits need room."""
        if not self.on:
            return 0
        if recurrent:
            return parallel * self.rollback
        return max(parallel, min(MAX_DEPTH, LOGITS_BYTES // (4 * vocabulary)))


class EngineConfig(Section, frozen=True):
    """What the engine process needs to start; its parent sends it as JSON."""

    model: str
    """Path of the GGUF."""
    engine: Engine
    threads: int
    log_level: str = "info"
    log_json: bool = True
    cache: Cache = Cache()
    host_bytes: int = 0
    """RAM for checkpoints and the host tier, resolved."""
    disk_directory: str = ""
    """Where the disk tier keeps its files; needed when it is on."""
    drafting: Drafting = Drafting()
