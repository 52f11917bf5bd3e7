"""What the routes share: one model's text side, its engine, and the metrics. Built once, closed once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from forgelm.api.engine_client import EngineClient
from forgelm.api.prepare import Preparer
from forgelm.config import FLUSH_SECONDS, Profile
from forgelm.llama.vocab import Vocabulary
from forgelm.metrics import Metrics
from forgelm.supervisor import Command, Phase, Supervisor
from forgelm.text.template import ChatTemplate

DRAIN_SECONDS = 10.0
"""How long running requests may go on after the server was told to stop."""


class Service:
    """One served model."""

    def __init__(self, profile: Profile, model: Path, command: Command) -> None:
        """Open the vocabulary and compile the template. Raises `ModelError`."""
        self.profile = profile
        self.model_id = profile.model.id
        self.created = int(model.stat().st_mtime) if model.exists() else 0
        self.metrics = Metrics()
        self.vocabulary = Vocabulary.open(model)
        template = self.vocabulary.chat_template()
        compiled = None
        if template is not None:
            bos, eos = (self.vocabulary.text_of(token) for token in (self.vocabulary.bos, self.vocabulary.eos))
            compiled = ChatTemplate(template, bos, eos)
        self.preparer = Preparer(profile, self.vocabulary, compiled)
        self.marked_pieces = self.vocabulary.showing(self.preparer.shown)
        """What tokens stand for where an answer is taken apart."""
        self.client = EngineClient(profile.limits, self.metrics)
        flush_seconds = FLUSH_SECONDS if profile.cache.disk_tier else 0.0
        self.supervisor = Supervisor(command, self.client, profile.limits.hang_seconds, flush_seconds)
        self.client.attach(self.supervisor)

    @property
    def context(self) -> int:
        """Tokens one request may hold: the engine's figure once it is known."""
        facts = self.supervisor.status.facts
        return facts.context if facts else self.profile.engine.context

    @property
    def drafters(self) -> tuple[str, ...] | None:
        """The running engine's ways of guessing ahead; None while none runs."""
        facts = self.supervisor.status.facts
        return facts.drafters if facts else None

    @asynccontextmanager
    async def running(self, on_unusable: Callable[[str], None]) -> AsyncIterator[None]:
        """Run the engine for as long as the block. `on_unusable` is told when it could never be started."""
        life = asyncio.create_task(self._live(on_unusable))
        ticker = asyncio.create_task(self.client.tick())
        try:
            yield
        finally:
            await self.supervisor.stop(DRAIN_SECONDS)
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            await life
            self.vocabulary.close()

    async def _live(self, on_unusable: Callable[[str], None]) -> None:
        await self.supervisor.run()
        status = self.supervisor.status
        # After a first success the API stays up and says what is wrong; before it there is nothing to serve.
        if status.phase is Phase.FAILED and not self.supervisor.was_ready:
            on_unusable(status.reason)
