"""What this machine's memory and arithmetic allow with a model, whatever the software.

Decoding one sequence reads all weights for each token: bandwidth over bytes is the most tokens per second. Prefill
multiplies every weight for each token: FLOP/s over FLOPs. On the CPU both are measured with NumPy on all usable cores:
bandwidth by finding the largest number of an array far larger than the caches, FLOP/s by the f32 matrix product of its
BLAS. Kernels on quantized weights may use instructions that multiply more per second than f32's, so a prefill above
that line is possible; so is a decode above the other, by a model that fits into the caches. Other work on the machine
makes both figures too small, never too large: the largest since the machine was started counts. A GPU's are what its
driver rates it at, and `where` says so.
"""

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forgelm import paths
from forgelm.bench.machine import cpu_name
from forgelm.bench.result import Ceiling
from forgelm.bench.weights import read_weights
from forgelm.machine import read_gpus, read_machine

LEAST_BYTES = 512 << 20
CACHES = 2
"""The array is so many times the caches' size, where memory allows."""
MOST_BYTES = 4 << 30
PASSES = 5
SIDE = 1536
"""Of the square matrices."""
CACHE_FILES = ("level", "shared_cpu_list", "size")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CPUS = Path("/sys/devices/system/cpu")


class Speeds(msgspec.Struct, frozen=True):
    """What a device can do per second, and which it is."""

    bandwidth: float
    """Bytes."""
    flops: float
    where: str


def measure_ceiling(model: Path, *, gpu: bool = False) -> Ceiling:
    """The ceiling of the model at `path`: 2 seconds on the CPU. `gpu`: where its weights are on the first card.

    Raises `ModelError` for a file that is no model, `MachineError` when `gpu` and there is no card.
    """
    weights = read_weights(model)
    speeds = rate_gpu() if gpu else measure_cpu()
    return Ceiling(
        bandwidth=speeds.bandwidth,
        flops=speeds.flops,
        bytes_per_token=weights.bytes_per_token,
        flops_per_token=weights.flops_per_token,
        where=speeds.where,
        cache_bytes=0 if gpu else cache_bytes(),
    )


def measure_cpu(record: Path | None = None) -> Speeds:
    """Measure, and return the best since the machine was started, which is kept in the file `record`."""
    record = record or paths.state_dir() / "bench" / "cpu.json"
    cores = read_machine().cores.usable
    found = Speeds(_bandwidth(cores), _flops(), f"{cpu_name()}, {cores} cores")
    boot = _boot()
    before = _read(record, boot)
    if before is not None and before.where == found.where:
        found = Speeds(max(before.bandwidth, found.bandwidth), max(before.flops, found.flops), found.where)
    if boot:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(msgspec.json.encode(_Record(boot, found)))
    return found


class _Record(msgspec.Struct, frozen=True):
    boot: str
    speeds: Speeds


def _boot() -> str:
    """What is another one after each start of the machine; "" where nothing tells."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read(record: Path, boot: str) -> Speeds | None:
    try:
        found = msgspec.json.decode(record.read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None
    return found.speeds if found.boot == boot else None


def _bandwidth(cores: int) -> float:
    """Bytes per second that all cores together read."""
    size = array_bytes(cache_bytes(), read_machine().memory.available) // cores
    parts = [np.ones(size // 8, dtype=np.int64) for _ in range(cores)]
    return max(_pass(parts) for _ in range(PASSES))


def array_bytes(caches: int, available: int) -> int:
    """How much to read: far more than the caches hold, and no more than a quarter of what is free."""
    return min(max(LEAST_BYTES, CACHES * caches), MOST_BYTES, max(1 << 20, available // 4))


def _pass(parts: Sequence[npt.NDArray[np.int64]]) -> float:
    # NumPy lets go of the GIL while it reads.
    threads = [threading.Thread(target=part.max) for part in parts]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(part.nbytes for part in parts) / (time.perf_counter() - begun)


def cache_bytes(cpus: Path = CPUS) -> int:
    """All caches of the last level together; 0 where the system doesn't say.

    Some processors have one for each few cores: each keeps its part of what all of them read.
    """
    found: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, shared, size = ((index / name).read_text(encoding="ascii").strip() for name in CACHE_FILES)
            found[int(level), shared] = int(size[:-1]) << {"K": 10, "M": 20}[size[-1:]]
        except (OSError, ValueError, KeyError):
            # Cores that are off, and virtual machines, have files that are empty or not there.
            continue
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last)


def _flops() -> float:
    """Floating-point operations per second of a matrix product, on the threads that BLAS uses."""
    matrix = np.ones((SIDE, SIDE), dtype=np.float32)
    return 2.0 * SIDE**3 / min(_seconds(lambda: matrix @ matrix) for _ in range(PASSES))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def rate_gpu(nvml: Any = None) -> Speeds:
    """What the driver rates the first card that may be used at.

    Memory clock × 2 × bus width, as CUDA's deviceQuery computes it, and f32 without tensor cores: cores × 2 × clock.
    Raises `MachineError` without a card, or with one that doesn't tell.
    """
    from forgelm.errors import MachineError

    nvml = nvml or importlib.import_module("pynvml")
    gpus = read_gpus(nvml)
    if not gpus.cards:
        raise MachineError(f"there is no GPU: {gpus.reason}")
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpus.cards[0].uuid)
        megahertz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
        bandwidth = 2e6 * megahertz * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
        clock = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        flops = 2 * clock * nvml.nvmlDeviceGetNumGpuCores(handle)
    except nvml.NVMLError as error:
        raise MachineError(f"the driver doesn't tell how fast the {gpus.cards[0].name} is: {error}") from None
    finally:
        nvml.nvmlShutdown()
    return Speeds(
        float(bandwidth), float(flops), f"{gpus.cards[0].name} (rated by its driver; f32 without tensor cores)"
    )
