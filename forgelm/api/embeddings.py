"""A model that runs beside the chat model, in a process of its own: started by the first request for it and kept alive.

What requests say is `side_requests`' business; here texts are token ids, and vectors and scores are bytes.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from forgelm import log
from forgelm.api.served import quant_of
from forgelm.api.side_client import SideClient, Ticket
from forgelm.api.side_keeper import SideKeeper
from forgelm.config import Embedding, Limits, Side
from forgelm.errors import ModelError, ModelNotFound, Unavailable
from forgelm.gguf.readable import is_here
from forgelm.ipc.embeddings import EmbedderConfig, EmbedderFacts
from forgelm.ipc.registry import Kind
from forgelm.llama.vocab import Vocabulary
from forgelm.metrics import Metrics
from forgelm.supervisor import Command, Phase, Status
from forgelm.text.pairs import Pairs


class SideText:
    """A side model's vocabulary, and how it wants a query and a document."""

    def __init__(self, kind: Kind, path: Path) -> None:
        """Up to half a second. Raises `ModelError`."""
        self.vocabulary = Vocabulary.open(path)
        self._pairs: Pairs | None = None
        if kind == "rerank":
            try:
                self._pairs = Pairs(self.vocabulary)
            except ModelError:
                self.vocabulary.close()
                raise

    @property
    def pairs(self) -> Pairs:
        """Of a rerank model."""
        assert self._pairs is not None
        return self._pairs


class Computed(msgspec.Struct, frozen=True):
    """What a request asked for."""

    vectors: list[bytes]
    """One per text, little-endian float32."""
    tokens: int
    """Of all texts."""
    facts: EmbedderFacts


Prepare = Callable[[SideText, EmbedderFacts], list[bytes]]
"""From a request to the token ids of its texts (int32). Runs on a worker thread; raises `RequestError`."""


class SideModel:
    """An embedding or rerank model, its process and its requests."""

    def __init__(
        self,
        kind: Kind,
        path: Path,
        config: Side,
        limits: Limits,
        metrics: Metrics,
        *,
        names: Iterable[str] = (),
        log_level: str = "info",
    ) -> None:
        """`names` are what requests may call it besides its file's name. Raises `ModelError` without a file."""
        if not is_here(path):
            raise ModelError(f"no {kind} model file at {path}")
        self.kind = kind
        self.config = config
        self.model_id = path.stem.lower()
        self.created = int(path.stat().st_mtime)
        self.bytes = path.stat().st_size
        self.names = frozenset(name.lower() for name in (self.model_id, path.name, *names))
        self.file = path.name
        self._path = path
        self._limits = limits
        self._client = SideClient(kind, limits, metrics)
        command = _command(kind, path, config, log_level)
        self._keeper = SideKeeper(kind, command, self._client, limits.hang_seconds)
        self._keeper.on_status = self._changed
        self._client.attach(self._keeper)
        metrics.server.side_ready.read_from(lambda: float(self._keeper.status.phase is Phase.READY), kind)
        self._wanted = asyncio.Event()
        """Somebody asked something: its process may start."""
        self._news = asyncio.Event()
        self._text: SideText | None = None
        self._opening = asyncio.Lock()
        self._readers = 0
        """Threads that use the vocabulary; they may outlast the requests that they work for."""
        self._counting = threading.Lock()

    # --- what others ask ---

    @property
    def status(self) -> Status:
        """Of its process."""
        return self._keeper.status if self._wanted.is_set() else Status(Phase.UNLOADED)

    @property
    def facts(self) -> EmbedderFacts | None:
        """Of the model, once it was loaded."""
        return self._keeper.facts

    @property
    def context(self) -> int:
        """The most tokens of one text; 0 while that isn't known."""
        return self.facts.context if self.facts else self.config.context

    @property
    def matryoshka(self) -> bool:
        """Whether its owner says that the first dimensions of a vector stand for themselves."""
        return isinstance(self.config, Embedding) and self.config.matryoshka

    @property
    def pid(self) -> int:
        """Of its process; 0 before the first."""
        return self._keeper.pid

    @property
    def quant(self) -> str:
        """Such as "Q8_0"; "" before its vocabulary was opened, and where the file doesn't say."""
        return quant_of(self._text.vocabulary) if self._text else ""

    @property
    def ready_since(self) -> float | None:
        """When its process got ready, by the monotonic clock; None while there is none."""
        return self._keeper.ready_since

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """The open requests, oldest first."""
        return self._client.tickets

    def require_name(self, name: str) -> None:
        """Raise `ModelNotFound` if a request that names `name` means another model; "" is any."""
        if name and name.lower() not in self.names:
            raise ModelNotFound(
                f"this server's {self.kind} model is {self.model_id!r}, not {name[:80]!r}", param="model"
            )

    async def compute(self, prepare: Prepare, name: str = "") -> Computed:
        """Start the process if need be, prepare a request's texts and compute them; logs call the request `name`.

        A caller that is cancelled takes back what has not begun. Raises `RequestError`.
        """
        with self._client.admitted(name) as ticket:
            # Before the vocabulary is opened here: llama.cpp ends a process on some broken ones.
            facts = await self._ready()
            texts = await self._prepared(prepare, facts)
            vectors = await self._client.compute(ticket, texts)
            return Computed(vectors, ticket.tokens, facts)

    def end_all(self, reason: str) -> None:
        """End every open request with an error."""
        self._client.end_all(reason)

    # --- its life ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for as long as the block; nothing is started before the first request."""
        life = asyncio.create_task(self._live())
        try:
            yield
        finally:
            await self._keeper.stop(self._limits.drain_seconds)
            self._wanted.set()
            await life
            # Freed under a thread that still reads it, it would crash the server.
            if self._text is not None and not self._readers:
                self._text.vocabulary.close()

    async def _live(self) -> None:
        await self._wanted.wait()
        await self._keeper.run()

    def _changed(self) -> None:
        self._news.set()

    async def _ready(self) -> EmbedderFacts:
        """Wait until the process takes texts. Raises `Unavailable` when it doesn't in time, or is down."""
        self._wanted.set()
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                while self._keeper.status.phase is Phase.LOADING:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Unavailable(f"the {self.kind} model is still loading", retry_after=5) from None
        self._client.require_ready()
        facts = self._keeper.facts
        assert facts is not None, "a process that is ready has told them"
        return facts

    async def _prepared(self, prepare: Prepare, facts: EmbedderFacts) -> list[bytes]:
        async with self._opening:
            if self._text is None:
                try:
                    self._text = await asyncio.to_thread(SideText, self.kind, self._path)
                except ModelError as error:
                    raise Unavailable(f"the {self.kind} model can't be used: {error}") from None
        with self._counting:
            self._readers += 1
        return await asyncio.to_thread(self._read, prepare, self._text, facts)

    def _read(self, prepare: Prepare, text: SideText, facts: EmbedderFacts) -> list[bytes]:
        try:
            return prepare(text, facts)
        finally:
            with self._counting:
                self._readers -= 1


def _command(kind: Kind, path: Path, config: Side, log_level: str) -> Command:
    """How to start its process."""
    settings = EmbedderConfig(
        model=str(path),
        kind=kind,
        context=config.context,
        parallel=config.parallel,
        threads=config.threads,
        device=config.device,
        pooling=config.pooling if isinstance(config, Embedding) else "auto",
        log_level=log_level,
        log_json=log.is_json(),
    )
    environment = {
        # A crash would otherwise run gdb on the dying process first.
        "GGML_NO_BACKTRACE": "1",
        # Threads that spin for each other would take the chat model's cores while they wait.
        "OMP_WAIT_POLICY": "passive",
    }
    return Command("forgelm.engine.embedding_main", msgspec.json.encode(settings).decode(), environment)
