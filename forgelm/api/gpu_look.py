"""Looking at the GPUs without waiting long: the driver is asked on a thread, at most once a second."""

import asyncio
import threading
from contextlib import suppress

from forgelm.gpu_status import GpuReader, gpu_reader
from forgelm.ipc.status import GpuStatus

PATIENCE_SECONDS = 0.3
"""How long the driver may take; what it said before is told meanwhile."""


class GpuLook:
    """One look at a time, for everybody who asks on this event loop."""

    def __init__(self, reader: GpuReader | None = None) -> None:
        self._reader = reader or gpu_reader()
        self._asking: asyncio.Future[None] | None = None
        """The driver is being asked."""

    async def read(self) -> tuple[GpuStatus, ...]:
        """The cards, as of now where the driver is quick."""
        reader = self._reader
        if reader.is_due and (self._asking is None or self._asking.done()):
            self._asking = self._ask()
        if self._asking is not None and not self._asking.done():
            await asyncio.wait((self._asking,), timeout=PATIENCE_SECONDS)
        return reader.known

    def _ask(self) -> asyncio.Future[None]:
        """Done when the driver has answered."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def ask() -> None:
            try:
                self._reader.read()
            finally:
                # The loop may have ended meanwhile.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_end, answered)

        # The loop's own threads are waited for when it ends, and a driver may hang for ever.
        threading.Thread(target=ask, name="nvml", daemon=True).start()
        return answered


def _end(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)
