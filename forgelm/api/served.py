"""One model as it is served: its settings, its text side and its engine, from the first load to the last answer.

Who may use it is counted: an answer that is still being written needs the vocabulary after its engine has ended.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from forgelm import log
from forgelm.api.engine_client import EngineClient
from forgelm.api.prepare import Preparer
from forgelm.config import FLUSH_SECONDS, Profile
from forgelm.errors import ConfigError, ModelError
from forgelm.gguf.file_types import quant_name
from forgelm.ipc.registry import Installed
from forgelm.llama.vocab import Vocabulary
from forgelm.supervisor import Command, Phase, Supervisor
from forgelm.text.template import ChatTemplate
from forgelm.text.templates import chosen_template

P = ParamSpec("P")
R = TypeVar("R")


class Target(msgspec.Struct, frozen=True):
    """A model that can be served: its settings as asked for, and its file."""

    profile: Profile
    model: Path
    names: frozenset[str]
    """What requests may call it."""

    def is_as(self, other: "Target") -> bool:
        """Whether both are the same file in the same sizes, with the same way of answering."""
        one, two = self.profile, other.profile
        same = (one.engine, one.chat, one.sampling) == (two.engine, two.chat, two.sampling)
        return same and self.model.resolve() == other.model.resolve()


class Launch(msgspec.Struct, frozen=True):
    """How to serve a target on this machine as it is now."""

    target: Target
    profile: Profile
    """The target's, less what had to be given up for want of memory."""
    command: Command


class Launcher(Protocol):
    """Decides how models run. Its methods block and are called on worker threads."""

    def resolve(self, name: str, installed: Installed | None) -> Target:
        """The model that is called `name`, which the registry knows as `installed`.

        Raises `ForgeError` if there is none, or one that can't be served.
        """

    def launch(self, target: Target, reserved: int = 0) -> Launch:
        """Fit it into what is free now, less `reserved` bytes. Raises `ForgeError`."""


class TextSide:
    """A model's vocabulary, its template, and what prepares requests for it."""

    def __init__(self, profile: Profile, model: Path) -> None:
        """Open the vocabulary and compile the template; up to half a second.

        Raises `ModelError`, and `ConfigError` for a template that was asked for and can't be used. Without one that can
        be rendered there are no chats, and everything else works.
        """
        self.created = int(model.stat().st_mtime) if model.exists() else 0
        self.vocabulary = vocabulary = Vocabulary.open(model)
        self.quant = quant_of(vocabulary)
        """Such as "Q4_K_M"; "" where the file doesn't say."""
        self.architecture = vocabulary.metadata("general.architecture")
        try:
            self.template = chosen_template(profile.chat.template, vocabulary.chat_template()) or ""
            """The chat template's source; "" without one."""
            self.preparer = Preparer(profile, vocabulary, _template(profile, vocabulary, self.template))
            self.marked_pieces = vocabulary.showing(self.preparer.shown)
            """What tokens stand for where an answer is taken apart."""
        except BaseException:
            vocabulary.close()
            raise


def quant_of(vocabulary: Vocabulary) -> str:
    """The quantization that a model's file tells; "" where it doesn't."""
    number = vocabulary.metadata("general.file_type")
    return quant_name(int(number)) if number.isdecimal() else ""


def _template(profile: Profile, vocabulary: Vocabulary, source: str) -> ChatTemplate | None:
    if not source:
        return None
    asked = profile.chat.template
    bos, eos = (vocabulary.text_of(token) for token in (vocabulary.bos, vocabulary.eos))
    try:
        return ChatTemplate(source, bos, eos)
    except ModelError as error:
        if asked:
            raise ConfigError(f"the chat template {asked} can't be used: {error}") from None
        log.get("api").warning("no chats: the model's template can't be rendered", reason=str(error))
        return None


class Served:
    """A model that is loaded, or being loaded."""

    def __init__(self, launch: Launch, text: TextSide, client: EngineClient, restarts: int = 0) -> None:
        """`restarts` were counted before, of other models."""
        self.target = launch.target
        self.profile = launch.profile
        self.model_id = launch.profile.model.id
        self.created = text.created
        self.text = text
        flush_seconds = FLUSH_SECONDS if launch.profile.cache.disk_tier else 0.0
        self.supervisor = Supervisor(
            launch.command, client, launch.profile.limits.hang_seconds, flush_seconds, restarts=restarts
        )
        self._leases = 0
        self._free = asyncio.Event()
        self._free.set()
        self._news = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    # --- who uses it ---

    def take(self) -> "Served":
        """Count one more user; each releases it once."""
        self._leases += 1
        self._free.clear()
        return self

    def release(self) -> None:
        """Count one user less."""
        self._leases -= 1
        if not self._leases:
            self._free.set()

    async def used_by_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `work` returns on a worker thread, which uses the model to its end whatever becomes of the caller."""
        self.take()
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        thread.add_done_callback(self._released_by)
        return await asyncio.shield(thread)

    def _released_by(self, thread: "asyncio.Future[Any]") -> None:
        if not thread.cancelled():
            # Told to the caller, if there still is one.
            thread.exception()
        self.release()

    @property
    def in_use(self) -> bool:
        return self._leases > 0

    async def unused(self, seconds: float) -> bool:
        """Wait until nobody uses it, or so long; whether that is so."""
        try:
            async with asyncio.timeout(seconds):
                await self._free.wait()
        except TimeoutError:
            return False
        return True

    # --- its engine ---

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

    def answers_to(self, name: str) -> bool:
        """Whether a request that names `name` means this model; one that names none means any."""
        return not name or name in self.target.names

    def start(self) -> None:
        """Let the engine live, until `end` or until it has failed for good."""
        self._life = asyncio.create_task(self.supervisor.run())

    def changed(self) -> None:
        """The supervisor's status did: whoever waits in `ready` looks again."""
        self._news.set()

    async def ready(self) -> None:
        """Wait until the engine takes requests. Raises `ModelError` when it can't be started."""
        while True:
            status = self.supervisor.status
            if status.phase is Phase.READY:
                return
            if status.phase in (Phase.FAILED, Phase.STOPPED):
                raise ModelError(status.reason or "the server is stopping")
            self._news.clear()
            await self._news.wait()

    async def lived(self) -> None:
        """Wait for the end of the engine's life."""
        if self._life is not None:
            # Whoever waits may be cancelled; the supervisor's task may not.
            await asyncio.shield(self._life)

    async def end(self, drain_seconds: float) -> None:
        """Let the engine finish what it has for up to `drain_seconds`, end it, and close the text side."""
        await self.supervisor.stop(drain_seconds)
        await self.lived()
        # A client that doesn't read its answer keeps the vocabulary: freed under its writer it would crash the server.
        if not self.in_use:
            self.text.vocabulary.close()
