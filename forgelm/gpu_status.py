"""What the GPUs are doing: memory, utilisation, power and temperature by NVML, again and again while a server runs.

NVML stays open between looks, since opening it can take seconds. A card that goes away, a driver that is replaced and
an answer that isn't supported leave a gap in what is told, and no error.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from forgelm.ipc.status import GpuStatus
from forgelm.machine import Gpu, list_gpus

FRESH_SECONDS = 1.0
"""How old an answer may be: some drivers take tens of milliseconds for a card's power."""
RETRY_SECONDS = 60.0
"""After how long a driver that wasn't there is looked for again."""


class GpuReader:
    """The cards that this process may use. May be asked from any thread; at most one asks the driver at a time."""

    def __init__(
        self,
        nvml: Any = None,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nvml` is pynvml, or what stands for it in tests."""
        self._nvml = nvml
        self._environ = environ
        self._clock = clock
        self._lock = threading.Lock()
        self._open = False
        self._cards: tuple[Gpu, ...] = ()
        self._known: tuple[GpuStatus, ...] = ()
        self._next_look = 0.0

    @property
    def known(self) -> tuple[GpuStatus, ...]:
        """What the last look has shown. Never waits."""
        return self._known

    @property
    def is_due(self) -> bool:
        """Whether `read` would ask the driver."""
        return self._clock() >= self._next_look

    def read(self) -> tuple[GpuStatus, ...]:
        """All cards that answer, as they were at most `FRESH_SECONDS` ago. Blocks while the driver is asked."""
        with self._lock:
            if self.is_due:
                was_open = self._open
                self._known = self._look()
                self._next_look = self._clock() + (FRESH_SECONDS if was_open or self._open else RETRY_SECONDS)
            return self._known

    def close(self) -> None:
        """Let go of the driver; the next look opens it again."""
        with self._lock:
            self._shut()
            self._next_look = 0.0

    def _look(self) -> tuple[GpuStatus, ...]:
        if not self._open and not self._opened():
            return ()
        found = [status for status in map(self._status, self._cards) if status is not None]
        if len(found) < len(self._cards):
            # A handle of a card that was lost stays dead, also when the card comes back.
            self._shut()
        return tuple(found)

    def _opened(self) -> bool:
        """Whether there is a driver with cards; it is open then."""
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError:
            return False
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return False
        self._open = True
        try:
            self._cards = list_gpus(self._nvml, self._environ).cards
        except self._nvml.NVMLError:
            self._cards = ()
        if not self._cards:
            self._shut()
        return self._open

    def _shut(self) -> None:
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _status(self, card: Gpu) -> GpuStatus | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(card.index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            return None
        busy = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        celsius = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        return GpuStatus(
            index=card.index,
            uuid=card.uuid,
            name=card.name,
            memory_used_bytes=memory.used,
            memory_total_bytes=memory.total,
            utilisation=None if busy is None else busy / 100,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=celsius,
        )

    def _ask(self, question: Callable[[], float]) -> float | None:
        """The answer; None from a card that can't tell (power in WSL2, utilisation under MIG)."""
        try:
            return float(question())
        except self._nvml.NVMLError:
            return None


@cache
def gpu_reader() -> GpuReader:
    """This process's one reader."""
    return GpuReader()


def read_gpu_status() -> tuple[GpuStatus, ...]:
    """All cards that this process may use and that answer, at most a second old. Blocks while the driver is asked."""
    return gpu_reader().read()
