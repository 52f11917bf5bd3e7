"""What the machine has, read from made-up machines; ports with real sockets."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgelm import machine
from forgelm.errors import MachineError

GIB = 2**30


class Tree:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 100 kB\nMemAvailable:    8388608 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cores(self, affinity: int = 8) -> machine.Cores:
        return machine.read_cores(self.proc, self.cgroups, affinity=affinity)

    def memory(self) -> machine.Memory:
        return machine.read_memory(self.proc, self.cgroups)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# ---- cores -----------------------------------------------------------------------------------------------------------


def test_without_cgroups_affinity_counts(tree: Tree) -> None:
    assert tree.cores(affinity=3) == machine.Cores(usable=3, online=os.cpu_count() or 1, affinity=3, quota=None)


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("400000 50000", 8), ("1600000 100000", 8)],
)
def test_cgroup_v2_quota(tree: Tree, quota: str, usable: int) -> None:
    """2.5 cores are 2, half a core is 1, and a quota above the affinity changes nothing."""
    tree.write("proc/self/cgroup", "0::/\n")
    tree.write("cgroup/cpu.max", quota + "\n")
    assert tree.cores(affinity=8).usable == usable


def test_a_parents_quota_binds_too(tree: Tree) -> None:
    """systemd puts CPUQuota= on the slice and `max` on the service inside it."""
    tree.write("proc/self/cgroup", "0::/forge.slice/forgelm.service\n")
    tree.write("cgroup/forge.slice/forgelm.service/cpu.max", "max 100000\n")
    tree.write("cgroup/forge.slice/cpu.max", "300000 100000\n")
    assert tree.cores().quota == 3.0


@pytest.mark.parametrize(("quota", "expected"), [("200000", 2.0), ("-1", None)])
def test_cgroup_v1_quota(tree: Tree, quota: str, expected: float | None) -> None:
    tree.write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    tree.write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", quota + "\n")
    tree.write("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert tree.cores().quota == expected


def test_the_real_machine_has_a_core() -> None:
    cores = machine.read_cores()
    assert 1 <= cores.usable <= cores.affinity <= cores.online


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_without_a_limit(tree: Tree) -> None:
    assert tree.memory() == machine.Memory(total=16 * GIB, available=8 * GIB, limit=None)
    assert tree.memory().usable == 16 * GIB


def test_cgroup_v2_memory(tree: Tree) -> None:
    """File cache counts as used, but can be had back."""
    tree.write("proc/self/cgroup", "0::/\n")
    tree.write("cgroup/memory.max", f"{4 * GIB}\n")
    tree.write("cgroup/memory.current", f"{3 * GIB}\n")
    tree.write("cgroup/memory.stat", f"anon 5\nactive_file 7\ninactive_file {1 * GIB}\n")
    assert tree.memory() == machine.Memory(total=16 * GIB, available=2 * GIB, limit=4 * GIB)
    assert tree.memory().usable == 4 * GIB


def test_cgroup_v1_memory_in_a_container(tree: Tree) -> None:
    """A v1 container sees the host's path in /proc, and its own files at the root of the mount."""
    tree.write("proc/self/cgroup", "4:memory:/docker/0123\n")
    tree.write("cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    tree.write("cgroup/memory/memory.usage_in_bytes", f"{1 * GIB}\n")
    assert tree.memory() == machine.Memory(total=16 * GIB, available=1 * GIB, limit=2 * GIB)


@pytest.mark.parametrize("limit", ["max", str(64 * GIB)])
def test_a_limit_above_the_ram_is_none(tree: Tree, limit: str) -> None:
    tree.write("proc/self/cgroup", "0::/\n")
    tree.write("cgroup/memory.max", limit)
    assert tree.memory().limit is None


def test_cgroup_v1_writes_no_limit_as_a_huge_number(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "4:memory:/\n")
    tree.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert tree.memory().limit is None


def test_memory_without_proc_comes_from_psutil(tmp_path: Path) -> None:
    memory = machine.read_memory(tmp_path, tmp_path)
    assert 0 < memory.available <= memory.total


# ---- CPU flags -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("processor : 0\nflags\t\t: fpu fma avx2 f16c sse4_2\nflags : amx_tile\n", ("sse4_2", "f16c", "fma", "avx2")),
        ("Features\t: fp asimd asimddp i8mm\n", ("asimd", "asimddp", "i8mm")),
        ("", ()),
    ],
)
def test_cpu_flags(tree: Tree, cpuinfo: str, flags: tuple[str, ...]) -> None:
    tree.write("proc/cpuinfo", cpuinfo)
    assert machine.read_cpu_flags(tree.proc) == flags


# ---- GPUs: NVML is a C library we don't have here, so a stand-in answers as its Python binding does ----------------


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class Nvml:
    """As much of pynvml as we call, with cards that are `SimpleNamespace`s; a card that is an int fails with it."""

    NVMLError = NvmlError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

    def __init__(self, *cards: Any, broken: int = 0) -> None:
        self.cards = cards
        self.broken = broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise NvmlError(self.broken)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": lambda: b"580.95.05",
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetPciInfo": lambda card: card.pci,
            "nvmlDeviceGetMemoryInfo": lambda card: card.memory,
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetName": lambda card: "NVIDIA GeForce RTX 3070",
            "nvmlDeviceGetCudaComputeCapability": lambda card: (8, 6),
        }
        return answers[name]

    def _handle(self, index: int) -> Any:
        if isinstance(self.cards[index], int):
            raise NvmlError(self.cards[index])
        return self.cards[index]


def card(bus: int, uuid: str) -> SimpleNamespace:
    pci = SimpleNamespace(domain=0, bus=bus, device=0)
    return SimpleNamespace(pci=pci, memory=SimpleNamespace(total=8 * GIB, free=7 * GIB), uuid=uuid)


def test_a_card_is_described_in_ggmls_words() -> None:
    nvml = Nvml(card(0xC1, "GPU-aaaa"))
    assert machine.read_gpus(nvml, {}) == machine.Gpus(
        (
            machine.Gpu(
                index=0,
                uuid="GPU-aaaa",
                name="NVIDIA GeForce RTX 3070",
                bus_id="0000:c1:00.0",
                total=8 * GIB,
                free=7 * GIB,
                driver="580.95.05",
                capability=(8, 6),
            ),
        )
    )
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("code", "said"),
    [(12, "no NVIDIA driver is installed"), (9, "kernel module isn't loaded"), (18, "restart"), (99, "code 99")],
)
def test_no_driver_is_a_reason_and_no_error(code: int, said: str) -> None:
    gpus = machine.read_gpus(Nvml(broken=code), {})
    assert gpus.cards == ()
    assert said in gpus.reason


def test_a_driver_without_cards() -> None:
    assert machine.read_gpus(Nvml(), {}) == machine.Gpus(reason="the NVIDIA driver 580.95.05 sees no card")


def test_a_lost_card_leaves_the_others() -> None:
    nvml = Nvml(15, card(2, "GPU-bbbb"))
    gpus = machine.read_gpus(nvml, {})
    assert [gpu.index for gpu in gpus.cards] == [1]
    assert "GPU 0 doesn't answer" in gpus.reason
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1]),
    ],
)
def test_cards_hidden_from_cuda_are_hidden_here(environ: dict[str, str], left: list[int]) -> None:
    """Numbers are CUDA's own order unless it is told otherwise, so by themselves they hide nothing."""
    gpus = machine.read_gpus(Nvml(card(1, "GPU-aaaa"), card(2, "GPU-bbbb")), environ)
    assert [gpu.index for gpu in gpus.cards] == left
    assert left or "CUDA_VISIBLE_DEVICES" in gpus.reason


def test_the_real_nvml_answers_or_says_why() -> None:
    gpus = machine.read_gpus()
    assert gpus.cards or gpus.reason


@pytest.mark.parametrize(
    ("maps", "major"),
    [
        ("7f00-7f01 r-xp 0 08:01 1 /usr/local/cuda/lib64/libcudart.so.12.9.79\n", 12),
        ("7f00-7f01 r-xp 0 08:01 1 /opt/nvidia/lib/libcublas.so.13\n", 13),
        ("7f00-7f01 r-xp 0 08:01 1 /usr/lib/libc.so.6\n", 0),
    ],
)
def test_cuda_version_of_the_loaded_libraries(tree: Tree, maps: str, major: int) -> None:
    tree.write("proc/self/maps", maps)
    assert machine.loaded_cuda_major(tree.proc) == major


# ---- ports -----------------------------------------------------------------------------------------------------------


def test_a_free_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        number = other.getsockname()[1]
    assert machine.check_port("127.0.0.1", number).free
    machine.require_free_port("127.0.0.1", number)


HOLD_A_PORT = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
input()
"""


def test_a_taken_port_names_its_holder(tmp_path: Path) -> None:
    """The name and the pid, and nothing of the arguments: they may hold a key."""
    script = tmp_path / "holder.py"
    script.write_text(HOLD_A_PORT)
    holder = subprocess.Popen(
        [sys.executable, script, "--api-key=secret"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        number = int(holder.stdout.readline())
        with pytest.raises(MachineError) as caught:
            machine.require_free_port("127.0.0.1", number)
        holder.communicate("\n")
    message = str(caught.value)
    assert f"port {number} is taken by" in message
    assert f"holder.py (pid {holder.pid})" in message
    assert "--port" in message
    assert "secret" not in message


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_address_of_another_machine(host: str) -> None:
    assert machine.check_port(host, 8080).problem == f"{host} is not an address of this machine"


def test_a_privileged_port_says_so() -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    assert "below 1024" in machine._bind_problem("127.0.0.1", 80, error)
