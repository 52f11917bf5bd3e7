"""Which model is served: one at a time, changed in order, put to rest when nobody asks, woken by whoever does.

Everybody who needs the model takes a lease. While the model changes all wait in one queue, first come first served, so
that two clients with two models take turns and neither starves. Nothing of the new model is loaded before the old
engine's process is gone, and the GPU says so as well.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from forgelm import log
from forgelm.api.engine_client import EngineClient
from forgelm.api.loading import Loader
from forgelm.api.served import Launch, Served, Target, TextSide
from forgelm.config import Profile
from forgelm.errors import (
    ClientLeft,
    ForgeError,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    Overloaded,
    QueueTimeout,
    RequestError,
    Unavailable,
)
from forgelm.supervisor import Phase, Status

Gone = Callable[[], Awaitable[None]]
"""Returns when a client doesn't wait any more."""

LAST_WORD_SECONDS = 5.0
"""What answers get to send their error once their model's time is over."""
FAILURE_SECONDS = 30.0
"""How long a model that couldn't be loaded isn't tried again."""
TICK_SECONDS = 1.0


class _Ask:
    """One request that waits for its turn."""

    def __init__(self, name: str, *, explicit: bool = False) -> None:
        self.name = name
        self.explicit = explicit
        """Somebody wants the model loaded, whatever the policy for requests is."""
        self.target: Target | None = None
        """What the name means, where that had to be found out."""
        self.given_up = False

    def means(self, target: Target) -> bool:
        """Whether `target` is what is asked for: by name, or the same model under another of its names."""
        return not self.name or self.name in target.names or (self.target is not None and self.target.is_as(target))


class Switcher:
    """Owns the present model."""

    def __init__(
        self,
        loader: Loader,
        client: EngineClient,
        profile: Profile,
        find: Callable[[str], Awaitable[Target]],
        on_change: Callable[[], None],
    ) -> None:
        """`profile` has the policies. `find` tells what a name means; `on_change` hears of each change of `status`."""
        self._loader = loader
        self._client = client
        self._policy = profile.switching
        self._limits = profile.limits
        self._find = find
        self._on_change = on_change
        self.current: Served | None = None
        self.resting: Target | None = None
        """What is loaded again at the next request, while nothing is."""
        self.failure = ""
        """Why nothing is loaded, where that is a failure."""
        self._gate = asyncio.Lock()
        self._waiting = 0
        self._coming: Target | None = None
        """What is about to be loaded."""
        self._failed: dict[str, tuple[float, str]] = {}
        """Name → when and why it couldn't be loaded."""
        self._restarts = 0
        self._closing = False
        self._used = time.monotonic()
        self._log = log.get("switching")

    # --- what others ask ---

    @property
    def status(self) -> Status:
        """Of the engine, or of what goes on without one."""
        if self.current is not None:
            return self.current.supervisor.status
        if self._coming is not None:
            return Status(Phase.LOADING, restarts=self._restarts)
        if self.failure:
            return Status(Phase.FAILED, reason=self.failure, restarts=self._restarts)
        return Status(Phase.LOADING if self.resting is None else Phase.UNLOADED, restarts=self._restarts)

    @property
    def target(self) -> Target | None:
        """The model that is served, comes next, or would be loaded by the next request."""
        return self._coming or (self.current.target if self.current else self.resting)

    @property
    def changing(self) -> bool:
        """Whether one model is making way for another, or for none."""
        return self._gate.locked()

    @property
    def waiting(self) -> int:
        """Requests that wait for a model to be loaded; none of them is in an engine's queue yet."""
        return self._waiting

    def try_lease(self, name: str) -> Served | None:
        """The present model for a request that may have it at once, counted as used; None for one that must wait."""
        current = self.current
        if current is None or self._gate.locked() or not current.answers_to(name):
            return None
        self._used = time.monotonic()
        return current.take()

    async def lease(self, name: str, gone: Gone) -> Served:
        """The model called `name`, loaded if need be, counted as used. `gone` returns when nobody waits any more.

        Raises `ModelNotFound`, `Unavailable`, `QueueTimeout` or `Overloaded`.
        """
        self._refuse_early(name)
        served = await self._queued(_Ask(name), gone)
        self._used = time.monotonic()
        return served

    async def load(self, name: str, gone: Gone) -> Served:
        """Serve the model called `name` from now on, once it is loaded; counted as used. Raises as `lease` does."""
        return await self._queued(_Ask(name, explicit=True), gone)

    async def unload(self) -> None:
        """Put the present model to rest when its answers are done."""
        async with self._gate:
            if self.current is not None:
                self.resting = self.current.target
                await self._leave()
                self._on_change()

    # --- the queue ---

    def _refuse_early(self, name: str) -> None:
        busy = self._gate.locked()
        if busy and self._policy.waiting == "refuse":
            raise Unavailable("the model is being changed", retry_after=5)
        target = self.target
        if not busy and target is not None and name and name not in target.names and not self._policy.on_request:
            raise self._not_served(name)

    def _not_served(self, name: str) -> ModelNotFound:
        served = self.target.profile.model.id if self.target else "no model"
        hint = "" if self._policy.on_request else "; POST /v1/models/load changes it"
        return ModelNotFound(f"this server serves {served!r}, not {name[:80]!r}{hint}", param="model")

    async def _queued(self, ask: _Ask, gone: Gone) -> Served:
        if self._waiting >= self._limits.queue:
            raise Overloaded(f"{self._waiting} requests wait for a model to be loaded", retry_after=5)
        self._waiting += 1
        turn, left = asyncio.ensure_future(self._turn(ask)), asyncio.ensure_future(gone())
        try:
            await asyncio.wait((turn, left), timeout=self._limits.queue_seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            turn.add_done_callback(_give_back)
            raise
        finally:
            self._waiting -= 1
            left.cancel()
        if turn.done():
            return turn.result()
        # A change that has begun goes on: others may wait for it.
        ask.given_up = True
        turn.add_done_callback(_give_back)
        if left.done() and not left.cancelled():
            raise ClientLeft("the client left while its model was being loaded")
        raise QueueTimeout(f"waited {self._limits.queue_seconds:.0f} s for a model to be loaded", retry_after=5)

    async def _turn(self, ask: _Ask) -> Served:
        # Finding out what a name means may take long, and nobody else waits for that.
        if not self._known(ask) and (ask.explicit or self._policy.on_request):
            ask.target = await self._resolve(ask)
        async with self._gate:
            if ask.given_up:
                raise InvalidRequest("nobody waits for it any more")
            return (await self._ensure(ask)).take()

    def _known(self, ask: _Ask) -> bool:
        present = (self._coming, self.current.target if self.current else None, self.resting)
        return not ask.name or any(target is not None and ask.name in target.names for target in present)

    async def _ensure(self, ask: _Ask) -> Served:
        current = self.current
        if current is not None and ask.means(current.target):
            # Restarting was given up, and somebody asks for it expressly.
            dead = ask.explicit and current.supervisor.status.phase is Phase.FAILED
            return await self._change(current.target) if dead else current
        resting = self.resting if current is None else None
        if resting is not None and ask.means(resting):
            self._require_untried(resting, ask)
            return await self._change(resting)
        if not ask.name:
            raise Unavailable(self.failure or "no model is loaded", retry_after=int(FAILURE_SECONDS))
        if not (ask.explicit or self._policy.on_request):
            raise self._not_served(ask.name)
        return await self._change(ask.target or await self._resolve(ask))

    async def _resolve(self, ask: _Ask) -> Target:
        name = ask.name
        try:
            target = await self._find(name)
        except RequestError:
            raise
        except ForgeError as error:
            raise Unavailable(f"{name[:80]} can't be loaded: {error}") from None
        if self.current is None or not target.is_as(self.current.target):
            self._require_untried(target, ask)
        return target

    def _require_untried(self, target: Target, ask: _Ask) -> None:
        """Raise `Unavailable` for one that couldn't be loaded a moment ago, unless somebody asks for it expressly."""
        when, why = self._failed.get(target.profile.model.id, (-FAILURE_SECONDS, ""))
        if time.monotonic() - when < FAILURE_SECONDS and not ask.explicit:
            raise Unavailable(why, retry_after=int(FAILURE_SECONDS))

    # --- changing ---

    async def _change(self, target: Target) -> Served:
        """Go over to `target`; back to what there was before where that fails. Raises `Unavailable`."""
        before = self.current.target if self.current else self.resting
        self._coming = target
        try:
            await self._leave()
            return await self._enter(target)
        except ForgeError as error:
            why = f"{target.profile.model.id} can't be loaded: {error}"
            self._log.error("model not loaded", model=target.profile.model.id, reason=why)
            await self._back_to(before, target, why)
            raise Unavailable(why, retry_after=int(FAILURE_SECONDS)) from None
        finally:
            self._coming = None
            self._on_change()

    async def _back_to(self, before: Target | None, failed: Target, why: str) -> None:
        """Load what there was before; where that is impossible too the next request tries it again."""
        self.failure, self.resting = why, before or failed
        if before is None or before is failed or self._closing:
            return
        self._coming = before
        try:
            await self._enter(before)
        except ForgeError as error:
            self.failure = f"{before.profile.model.id} can't be loaded again: {error}"
            self._log.error("nothing is loaded", reason=self.failure)

    async def _leave(self) -> None:
        served = self.current
        if served is None:
            return
        if self._policy.waiting == "refuse":
            self._client.end_waiting("the model is being changed", "model_change")
        if not await served.unused(self._policy.drain_seconds):
            self._client.end_all("its model is being unloaded", "model_change")
            await served.unused(LAST_WORD_SECONDS)
        await self._end(served)

    async def _end(self, served: Served) -> None:
        """End the engine. Raises `MachineError` when the GPU goes on listing it: the next one would find no room."""
        await served.end(0.0)
        self._restarts = served.supervisor.status.restarts
        self.current = None
        await self._loader.require_released(served.supervisor.pid)

    async def _enter(self, target: Target) -> Served:
        """Load `target` and wait until it takes requests. Raises `ForgeError`."""
        try:
            served = self.put(*await self._loader.load(target))
            await served.ready()
        except ForgeError as error:
            self._failed[target.profile.model.id] = (time.monotonic(), str(error))
            if self.current is not None:
                await self._end(self.current)
            raise
        self._failed.pop(target.profile.model.id, None)
        return served

    def put(self, launch: Launch, text: TextSide) -> Served:
        """Start serving; nothing else may be served. Raises `ModelError` when the server is stopping."""
        assert self.current is None
        if self._closing:
            text.vocabulary.close()
            raise ModelError("the server is stopping")
        served = self.current = Served(launch, text, self._client, self._restarts)
        self.resting, self.failure = None, ""
        self._client.attach(served.supervisor, served.model_id, served.profile.name)
        served.supervisor.on_status = partial(self._changed, served)
        served.start()
        return served

    def _changed(self, served: Served) -> None:
        served.changed()
        self._on_change()

    # --- the end, and rest ---

    async def stop(self, drain_seconds: float) -> None:
        """End whatever is served. Nothing may ask for a model any more."""
        self._closing = True
        if self.current is not None:
            await self.current.end(drain_seconds)
        # A change that was going on fails now, and then there is nothing left.
        async with self._gate:
            self.current = None

    async def rest(self) -> None:
        """Unload the model whenever nobody has asked anything for as long as the policy says. Runs for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._is_idle(time.monotonic()):
                self._log.info("model unloaded until the next request", idle_seconds=self._policy.idle_seconds)
                try:
                    await self.unload()
                except ForgeError as error:
                    self._log.warning("the engine is gone, and not all of its memory", reason=str(error))

    def _is_idle(self, now: float) -> bool:
        current, limit = self.current, self._policy.idle_seconds
        if not limit or current is None or self._gate.locked():
            return False
        if current.in_use or current.supervisor.status.phase is not Phase.READY:
            self._used = now
        return now - self._used >= limit


def _give_back(turn: "asyncio.Future[Served]") -> None:
    """Nobody waits for the lease that comes of it any more."""
    if not turn.cancelled() and turn.exception() is None:
        turn.result().release()
