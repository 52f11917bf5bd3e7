"""Whether the GPU has let go of a process that ended: what it held is free only some time later.

In a container the driver's process ids are the host's, so the memory in use has to come to rest as well.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1


def gpu_released(pid: int, seconds: float, nvml: Any = None, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Wait until no card lists process `pid` and the memory in use doesn't fall any more, `seconds` at most.

    Whether that came about; without an NVIDIA driver there is nothing to wait for.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return True
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return True
    try:
        return _settled(nvml, pid, seconds, sleep)
    except nvml.NVMLError:
        # A card that doesn't answer can't confirm anything; the load will say what is wrong with it.
        return False
    finally:
        nvml.nvmlShutdown()


def _settled(nvml: Any, pid: int, seconds: float, sleep: Callable[[float], None]) -> bool:
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    used = _used(nvml, cards)
    for _ in range(max(1, int(seconds / POLL_SECONDS))):
        if not cards:
            return True
        sleep(POLL_SECONDS)
        before, used = used, _used(nvml, cards)
        if used >= before and not _listed(nvml, cards, pid):
            return True
    return False


def _listed(nvml: Any, cards: list[Any], pid: int) -> bool:
    """Whether a card lists the process. Some can't list any: then the memory alone tells."""
    try:
        return any(pid == each.pid for card in cards for each in nvml.nvmlDeviceGetComputeRunningProcesses(card))
    except nvml.NVMLError:
        return False


def _used(nvml: Any, cards: list[Any]) -> int:
    """Bytes in use on all cards."""
    return sum(int(nvml.nvmlDeviceGetMemoryInfo(card).used) for card in cards)
