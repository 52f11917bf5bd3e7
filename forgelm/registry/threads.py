"""Work in threads for the app: not too much at once, and nothing that a process which ends would wait for.

asyncio's own executor is joined at the end of the loop and again at the end of the process, however long a thread may
have to wait for the hub.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from forgelm.errors import RegistryUnavailable

AT_ONCE = 8
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Threads:
    """Runs what an app's handlers hand it."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)
        self._waiting: set[asyncio.Future[Any]] = set()

    def give_up(self) -> None:
        """Have whoever waits be told that the process ends. In the loop's thread."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(RegistryUnavailable("the registry is about to end: try again", retry_after=2))

    async def run(self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """The result of `work`, or what it raises. Who stops waiting doesn't stop the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def body() -> None:
            result, problem = None, None
            try:
                result = work(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  it is raised where it is waited for
                problem = error
            # The loop may have ended meanwhile: nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, problem)

        self._waiting.add(future)
        try:
            async with self._room:
                # With what the log calls the request: threads begin without it.
                run = contextvars.copy_context().run
                threading.Thread(target=run, args=(body,), name="request", daemon=True).start()
                return await future
        finally:
            self._waiting.discard(future)
