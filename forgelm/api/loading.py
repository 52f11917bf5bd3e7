"""From a name to a model that is ready to be started: what takes long or may fail, on worker threads."""

import asyncio
from collections.abc import Awaitable, Callable

from forgelm import log
from forgelm.api.served import Launch, Launcher, Target, TextSide
from forgelm.errors import ForgeError, MachineError, ModelError, ModelNotFound, Unavailable
from forgelm.gpu import gpu_released
from forgelm.ipc.registry import Installed

GPU_SECONDS = 30.0
"""How long a card may take to notice that a process has ended."""
FIND_SECONDS = 10.0
"""How long the registry, which yields to everybody, may take to tell what a name means."""


class Loader:
    """Asks the registry and the launcher, and opens text sides."""

    def __init__(
        self,
        launcher: Launcher,
        find: Callable[[str], Awaitable[Installed | None]],
        reserved: Callable[[], int] = lambda: 0,
    ) -> None:
        """`find` asks the registry; `reserved` tells the bytes that models beside the chat model will take yet."""
        self._launcher = launcher
        self._find = find
        self._reserved = reserved
        self._log = log.get("loading")

    async def find(self, name: str) -> Target:
        """What `name` means. Raises `ForgeError`: `Unavailable` where only the registry could know, and is away."""
        away: Unavailable | None = None
        installed: Installed | None = None
        try:
            async with asyncio.timeout(FIND_SECONDS):
                installed = await self._find(name)
        except TimeoutError:
            away = Unavailable("the registry is busy: try again", retry_after=5)
        except Unavailable as error:
            away = error
        try:
            return await asyncio.to_thread(self._launcher.resolve, name, installed)
        except ModelNotFound:
            raise away or ModelNotFound(f"there is no model {name[:80]!r} here", param="model") from None

    async def load(self, target: Target) -> tuple[Launch, TextSide]:
        """Fit the model into what is free, and open its text side. Raises `ForgeError`, whatever goes wrong."""
        try:
            launch = await asyncio.to_thread(self._launcher.launch, target, self._reserved())
            return launch, await asyncio.to_thread(TextSide, launch.profile, target.model)
        except ForgeError:
            raise
        except OSError as error:
            raise ModelError(f"{error.filename or target.model}: {error.strerror or error}") from None
        except Exception as error:  # noqa: BLE001  a bug here must not leave a server without a model
            self._log.exception("model not loaded", model=target.profile.model.id)
            raise ModelError(f"loading it failed: {error!r}") from None

    async def require_released(self, pid: int) -> None:
        """Wait until the GPU has let go of the process `pid`. Raises `MachineError` when it doesn't."""
        if not await asyncio.to_thread(gpu_released, pid, GPU_SECONDS):
            raise MachineError(f"the GPU doesn't let go of the engine that has ended (pid {pid})")
