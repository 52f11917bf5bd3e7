"""What this machine has: cores, memory, CPU flags, GPUs, and whether a port is free.

Facts only: which profile fits them is `selection`'s business, and llama.cpp's view of the same machine is
`llama.lib`'s. Every reader takes the directory it reads from, so that tests hand it a made-up machine. NVML
and psutil are imported where they are used: neither start-up nor a server without a GPU pays for them.
"""

import errno
import importlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forgelm.errors import MachineError

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

# The instruction sets for which llama.cpp has kernels of their own.
CPU_FLAGS = (
    "sse4_2", "ssse3", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni",
    "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512vbmi",
    "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip

# cgroup v1 says "no limit" with the largest multiple of the page size.
_UNLIMITED = 1 << 60


class Cores(msgspec.Struct, frozen=True):
    """CPU cores, counted four ways."""

    usable: int
    """How many threads can run at once: the least of affinity and quota, at least 1."""
    online: int
    affinity: int
    """Cores the scheduler may place this process on (taskset, cpuset)."""
    quota: float | None
    """The cgroups' limit in cores; None without one."""


class Memory(msgspec.Struct, frozen=True):
    """RAM in bytes."""

    total: int
    available: int
    """What can be taken now without swapping; the cgroup's room if that is less."""
    limit: int | None
    """The cgroups' limit; None without one."""

    @property
    def usable(self) -> int:
        """The most this process could ever get."""
        return self.total if self.limit is None else min(self.total, self.limit)


class Gpu(msgspec.Struct, frozen=True):
    """One NVIDIA card, as NVML reports it. Sizes are in bytes."""

    index: int
    uuid: str
    name: str
    bus_id: str
    """PCI address in ggml's spelling, `0000:c1:00.0`: the one name that NVML and CUDA agree on."""
    total: int
    free: int
    driver: str
    capability: tuple[int, int]


class Gpus(msgspec.Struct, frozen=True):
    """The cards this process may use; `reason` says why there are none, or why one is missing."""

    cards: tuple[Gpu, ...] = ()
    reason: str = ""


class Machine(msgspec.Struct, frozen=True):
    """Everything that choosing a profile depends on."""

    cores: Cores
    memory: Memory
    flags: tuple[str, ...]
    gpus: Gpus


class Port(msgspec.Struct, frozen=True):
    """Whether an address can be listened on; `problem` is one line that says why not."""

    host: str
    number: int
    problem: str = ""

    @property
    def free(self) -> bool:
        return not self.problem


def read_machine(proc: Path = PROC, cgroups: Path = CGROUPS) -> Machine:
    """Look at everything once; a few milliseconds without a GPU, tens with one."""
    return Machine(
        cores=read_cores(proc, cgroups),
        memory=read_memory(proc, cgroups),
        flags=read_cpu_flags(proc),
        gpus=read_gpus(),
    )


def read_cores(proc: Path = PROC, cgroups: Path = CGROUPS, *, affinity: int | None = None) -> Cores:
    """Count cores. A quota of 2.5 is 2: a third thread would be throttled, and all the others wait for it."""
    online = os.cpu_count() or 1
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online
    quota = min(_cpu_quotas(proc, cgroups), default=None)
    usable = affinity if quota is None else min(affinity, int(quota))
    return Cores(usable=max(1, usable), online=online, affinity=affinity, quota=quota)


def read_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
    """Read RAM and the cgroup's limit. Raises `MachineError` where neither /proc nor psutil can tell."""
    total, available = _ram(proc)
    limit: int | None = None
    for cap, used in _memory_caps(proc, cgroups):
        limit = cap if limit is None else min(limit, cap)
        available = min(available, max(0, cap - used))
    if limit is not None and limit >= total:
        limit = None
    return Memory(total=total, available=available, limit=limit)


def read_cpu_flags(proc: Path = PROC) -> tuple[str, ...]:
    """The flags of `CPU_FLAGS` that the first core has; empty where /proc/cpuinfo doesn't exist."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _text(proc / "cpuinfo"), re.MULTILINE)
    present = set(found.group(1).split()) if found else set()
    return tuple(flag for flag in CPU_FLAGS if flag in present)


# ---- cgroups -----------------------------------------------------------------------------------------------


def _cpu_quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    for directory in _cgroup_directories(proc, cgroups, "cpu"):
        quota, _, period = _text(directory / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
        cores = _number(quota)
        microseconds = _number(period)
        if cores is not None and cores > 0 and microseconds:
            yield cores / microseconds


def _memory_caps(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that can't be reclaimed) of each cgroup around this process that has a limit."""
    for directory in _cgroup_directories(proc, cgroups, "memory"):
        limit = _number(_text(directory / "memory.max") or _text(directory / "memory.limit_in_bytes"))
        if limit is None or limit >= _UNLIMITED:
            continue
        used = _number(_text(directory / "memory.current") or _text(directory / "memory.usage_in_bytes")) or 0
        # Page cache counts as used, but the kernel drops it before it kills anyone.
        stat = _text(directory / "memory.stat")
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
        yield limit, max(0, used - (int(cached.group(1)) if cached else 0))


def _cgroup_directories(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup for `controller` and its ancestors, v1 and v2 alike: any may hold the limit.

    Inside a container /proc/self/cgroup can name the host's path while only the container's own part is
    mounted, at the root; walking up from a path that doesn't exist ends at that root.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            roots = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            roots = [cgroups / controllers]
        else:
            continue
        for root in roots:
            place = root / path.lstrip("/")
            while place != root:
                if place.is_dir():
                    yield place
                place = place.parent
            yield root


# ---- RAM ---------------------------------------------------------------------------------------------------


def _ram(proc: Path) -> tuple[int, int]:
    fields: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE))
    if "MemTotal" in fields:
        return int(fields["MemTotal"]) * 1024, int(fields.get("MemAvailable", fields["MemTotal"])) * 1024
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        raise MachineError("this machine's memory can't be read: no /proc/meminfo and no psutil") from None
    memory = psutil.virtual_memory()
    return memory.total, memory.available


# ---- GPUs --------------------------------------------------------------------------------------------------


def read_gpus(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Gpus:
    """The NVIDIA cards this process may use. Never raises: without a driver it answers with the reason."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Gpus(reason="nvidia-ml-py isn't installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Gpus(reason=_nvml_reason(nvml, error))
    try:
        return list_gpus(nvml, environ)
    except nvml.NVMLError as error:
        return Gpus(reason=f"the NVIDIA driver answers with an error: {error}")
    finally:
        nvml.nvmlShutdown()


def list_gpus(nvml: Any, environ: Mapping[str, str] = os.environ) -> Gpus:
    """What `read_gpus` tells, by an NVML that is open already. Raises its `NVMLError`."""
    return _visible(_cards(nvml), environ)


def _cards(nvml: Any) -> Gpus:
    driver = _str(nvml.nvmlSystemGetDriverVersion())
    cards: list[Gpu] = []
    problems: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(_card(nvml, index, driver))
        except nvml.NVMLError as error:  # one card fell off the bus: the others still work
            problems.append(f"GPU {index} doesn't answer: {error}")
    if not cards and not problems:
        problems.append(f"the NVIDIA driver {driver} sees no card")
    return Gpus(tuple(cards), "; ".join(problems))


def _card(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=_str(nvml.nvmlDeviceGetUUID(handle)),
        name=_str(nvml.nvmlDeviceGetName(handle)),
        bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        total=memory.total,
        free=memory.free,
        driver=driver,
        capability=nvml.nvmlDeviceGetCudaComputeCapability(handle),
    )


def _visible(gpus: Gpus, environ: Mapping[str, str]) -> Gpus:
    """Drop the cards that CUDA_VISIBLE_DEVICES hides from llama.cpp, which NVML shows all the same.

    Uuids can always be matched. Plain numbers count in CUDA's order, fastest first, which is NVML's only
    under CUDA_DEVICE_ORDER=PCI_BUS_ID: otherwise the list is left alone rather than cut wrongly.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None or not gpus.cards:
        return gpus
    wanted = [item.strip() for item in value.split(",") if item.strip()]
    if any(item.isdigit() for item in wanted) and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return gpus
    cards = tuple(card for card in gpus.cards if any(_names(item, card) for item in wanted))
    return Gpus(cards, gpus.reason if cards else f"CUDA_VISIBLE_DEVICES={value} hides every card")


def _names(item: str, card: Gpu) -> bool:
    return item == str(card.index) or (item.startswith("GPU-") and card.uuid.startswith(item))


def _nvml_reason(nvml: Any, error: Exception) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver is installed"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA driver is installed but its kernel module isn't loaded"
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the NVIDIA driver was updated and its old kernel module still runs; restart the machine"
    return f"NVML can't start: {error}"


def loaded_cuda_major(proc: Path = PROC) -> int:
    """The CUDA version that the libraries loaded into this process were built for; 0 if none is loaded.

    Meaningful once libllama is loaded. llama.cpp itself can't tell a build without CUDA from one whose driver
    is too old: both see no device.
    """
    found = re.findall(r"/lib(?:cudart|cublas)\.so\.(\d+)", _text(proc / "self" / "maps"))
    return max(map(int, found), default=0)


# ---- ports -------------------------------------------------------------------------------------------------


def check_port(host: str, number: int) -> Port:
    """Try to listen on `host`:`number` and let go at once; 0 (any free port) is always free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):  # the latter for what can be no host name at all
        return Port(host, number, f"{host} is not an address of this machine")
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier run that still linger don't count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return Port(host, number, _bind_problem(host, number, error))
    return Port(host, number)


def require_free_port(host: str, number: int, flag: str = "--port") -> None:
    """Raise `MachineError` in one line with the holder and the way round it, which is `flag`."""
    port = check_port(host, number)
    if not port.free:
        raise MachineError(f"{port.problem}; choose another with {flag}")


def _bind_problem(host: str, number: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {number} is taken by {_holder(number)}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    if error.errno == errno.EACCES:
        return f"port {number} needs privileges (ports below 1024 do)"
    return f"port {number} can't be listened on: {error.strerror}"


def _holder(number: int) -> str:
    """Program and pid listening on the port, as far as this user may see them."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr.port == number
            if listening and connection.pid is not None:
                return f"{_program(psutil.Process(connection.pid))} (pid {connection.pid})"
    except psutil.Error:
        pass  # it ended meanwhile, or we may not look
    return "a program of another user"


def _program(process: Any) -> str:
    """A process's name; for an interpreter also what it runs. Never its arguments, which may hold secrets."""
    name: str = process.name()
    words = process.cmdline()[1:]
    if not name.startswith("python") or not words:
        return name
    if words[0] == "-m" and len(words) > 1:
        return f"{name} -m {words[1]}"
    return name if words[0].startswith("-") else f"{name} {Path(words[0]).name}"


# ---- helpers -----------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    """A small kernel file's text; "" when it doesn't exist or can't be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """The integer in `text`; None for "max" and for nothing."""
    try:
        return int(text)
    except ValueError:
        return None


def _str(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
