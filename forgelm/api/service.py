"""What the routes share: the model that is served and how it changes, the engine's client, the registry, the metrics.

Built once, closed once.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forgelm import log
from forgelm.api.embeddings import SideModel
from forgelm.api.engine_client import EngineClient
from forgelm.api.loading import Loader
from forgelm.api.served import Launch, Launcher, Served, Target, TextSide
from forgelm.api.switching import Switcher
from forgelm.config import Profile
from forgelm.errors import ForgeError, Unavailable
from forgelm.ipc.messages import Spare
from forgelm.ipc.registry import Installed, Kind
from forgelm.ipc.status import Role
from forgelm.metrics import Metrics
from forgelm.sidecar import Sidecar
from forgelm.supervisor import Phase, Status

if TYPE_CHECKING:
    from forgelm.api.fetching import Fetching
    from forgelm.api.registry_client import RegistryClient


class Beside(msgspec.Struct, frozen=True):
    """A model that runs beside the chat model."""

    kind: Kind
    path: Path
    names: tuple[str, ...] = ()
    log_level: str = "info"


class Setup(NamedTuple):
    """What a server is made of."""

    first: Launch | Target
    """What is served first: a launch at once, a target as soon as the registry has fetched it."""
    launcher: Launcher
    sidecar: Sidecar | None = None
    beside: Sequence[Beside] = ()


class Service:
    """One server's inside."""

    def __init__(self, setup: Setup) -> None:
        """Opens the text side of a launch. Raises `ModelError`, also for a model beside it that isn't there."""
        first, launcher, sidecar, beside = setup
        target = first.target if isinstance(first, Launch) else first
        self.profile: Profile = target.profile
        """What the server itself is set up by: address, limits, policies."""
        self.metrics = Metrics(vllm_names=self.profile.metrics.vllm_names)
        self.client = EngineClient(self.profile.limits, self.metrics)
        self.registry = _client(sidecar) if sidecar else None
        if sidecar is not None:
            sidecar.on_working = self._spare
        self._loader = Loader(launcher, self._find, self._reserved)
        self.switcher = Switcher(self._loader, self.client, self.profile, self._loader.find, self._changed)
        self.metrics.requests.waiting.read_from(lambda: self.waiting)
        self.sides = {each.kind: self._side(each) for each in beside}
        """Models beside the chat model."""
        self._sidecar = sidecar
        self._first = first
        self._text = TextSide(first.profile, first.target.model) if isinstance(first, Launch) else None
        self.fetching: Fetching | None = None
        """The download that the first model waits for."""
        self.on_ready: Callable[[Served], None] = lambda _: None
        """Told of each model that takes requests."""
        self._announced: Served | None = None

    def _side(self, beside: Beside) -> SideModel:
        config = self.profile.embedding if beside.kind == "embedding" else self.profile.rerank
        return SideModel(
            beside.kind,
            beside.path,
            config,
            self.profile.limits,
            self.metrics,
            names=beside.names,
            log_level=beside.log_level,
        )

    # --- what is served ---

    @property
    def status(self) -> Status:
        """Of the engine, or of what there is instead."""
        if self.fetching is not None:
            return Status(Phase.DOWNLOADING, self.fetching.percent, self.fetching.detail)
        return self.switcher.status

    @property
    def target(self) -> Target:
        """The model that is served, comes next, or would be loaded by the next request."""
        first = self._first.target if isinstance(self._first, Launch) else self._first
        return self.switcher.target or first

    @property
    def waiting(self) -> int:
        """Requests in the engine's queue, and those whose model isn't loaded yet."""
        return self.client.waiting + self.switcher.waiting

    @property
    def model_id(self) -> str:
        return self.target.profile.model.id

    def require_begun(self) -> None:
        """Raise `Unavailable` while the first model is on its way: that isn't waited for."""
        status = self.status
        if status.phase is Phase.DOWNLOADING:
            raise Unavailable(f"the model is being downloaded ({status.percent:.0f} %)", retry_after=30)
        if self.switcher.target is None and not self.switcher.failure:
            raise Unavailable("the model is loading (0 %)", retry_after=2)

    def end_all(self, reason: str) -> None:
        """End every open request with an error, because the server stops."""
        self.client.end_all(reason, "shutdown")
        for each in self.sides.values():
            each.end_all(reason)

    @property
    def registry_pid(self) -> int:
        """Of the registry process; 0 where there is none, or somebody else's is used."""
        return self._sidecar.pid if self._sidecar else 0

    @property
    def processes(self) -> list[tuple[Role, int]]:
        """Of this server, with their ids; one that isn't there now may be among them."""
        found: list[tuple[Role, int]] = [("api", os.getpid())]
        if self.switcher.current is not None:
            found.append(("engine", self.switcher.current.supervisor.pid))
        found += [(side.kind, side.pid) for side in self.sides.values() if side.kind != "chat"]
        return [*found, ("registry", self.registry_pid)]

    async def installed(self) -> tuple[Installed, ...]:
        """Models on this machine; none while the registry doesn't answer."""
        return await self.registry.models() if self.registry else ()

    async def _find(self, name: str) -> Installed | None:
        return await self.registry.find(name) if self.registry else None

    def _spare(self) -> None:
        """Have the engine leave the registry a core while it works: threads on all of them would wait for one."""
        current = self.switcher.current
        if current is not None and self._sidecar is not None:
            current.supervisor.send(Spare(int(self._sidecar.working)))

    def _changed(self) -> None:
        current = self.switcher.current
        if current is not None and current.supervisor.status.phase is Phase.READY and self._sidecar is not None:
            # Also one that was started again.
            self._spare()
        if current is None or current.supervisor.status.phase is not Phase.READY or current is self._announced:
            return
        self._announced = current
        self.on_ready(current)
        if self.registry:
            self.registry.tell_used(current.target.model)

    # --- its life ---

    @asynccontextmanager
    async def running(self, on_unusable: Callable[[str], None]) -> AsyncIterator[None]:
        """Run everything for as long as the block. `on_unusable` is told when the first model can't ever be served."""
        life = [asyncio.create_task(each) for each in (self._begin(on_unusable), self.client.tick())]
        rest = asyncio.create_task(self.switcher.rest())
        sidecar = asyncio.create_task(self._sidecar.run()) if self._sidecar else None
        try:
            async with AsyncExitStack() as sides:
                for each in self.sides.values():
                    await sides.enter_async_context(each.running())
                yield
        finally:
            await _cancel(rest)
            await self.switcher.stop(self.profile.limits.drain_seconds)
            await _cancel(*life)
            if self.registry:
                await self.registry.close()
            if self._sidecar and sidecar:
                await self._sidecar.stop()
                await _cancel(sidecar)

    async def _begin(self, on_unusable: Callable[[str], None]) -> None:
        """Serve the first model; afterwards the API stays up and says what is wrong."""
        try:
            served = self.switcher.put(*await self._opened())
        except ForgeError as error:
            on_unusable(str(error))
            return
        await served.lived()
        status = served.supervisor.status
        if status.phase is Phase.FAILED and not served.supervisor.was_ready:
            on_unusable(status.reason)

    async def _opened(self) -> tuple[Launch, TextSide]:
        if isinstance(self._first, Target):
            return await self._loader.load(await self._fetched(self._first))
        assert self._text is not None
        return self._first, self._text

    async def _fetched(self, target: Target) -> Target:
        assert self.registry is not None, "nobody else can fetch it"
        from forgelm.api.fetching import Fetching

        self.fetching = Fetching(target.profile, self.registry)
        try:
            return Target(target.profile, await self.fetching.run(), target.names)
        finally:
            self.fetching = None

    def _reserved(self) -> int:
        """Bytes that the models beside the chat model will take, those left out that have them already."""
        return sum(each.bytes for each in self.sides.values() if each.status.phase is not Phase.READY)


def _client(sidecar: Sidecar) -> "RegistryClient":
    # The HTTP client library costs a server without a registry nothing.
    from forgelm.api.registry_client import RegistryClient

    return RegistryClient(sidecar)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """End tasks; what one of them has died of is said, and stops nobody from ending the rest."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            await task
        except asyncio.CancelledError:
            continue
        except Exception:  # noqa: BLE001
            log.get("api").exception("a task of the server's own failed")
