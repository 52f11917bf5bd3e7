"""`host-driver.sh`, run for real on directories made to look like machines: only the driver's libraries are linked."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.nix.flake import ROOT

SCRIPT = ROOT / "containers" / "nix" / "host-driver.sh"
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
OTHERS = ("libc.so.6", "libstdc++.so.6", "libcudart.so.13", "libnvidia-glcore.so.580.1")


class Machine:
    """A directory that stands for /."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = root / "run" / "user" / "1000"
        self.runtime.mkdir(parents=True)
        (root / "tmp").mkdir()

    def driver(self, place: str, version: str = "580.1", others: tuple[str, ...] = OTHERS) -> Path:
        """Install a driver there, among libraries that mustn't be seen."""
        directory = self.root / place
        directory.mkdir(parents=True, exist_ok=True)
        for library in ("libcuda.so", "libnvidia-ml.so"):
            (directory / f"{library}.{version}").write_text(place)
            (directory / f"{library}.1").unlink(missing_ok=True)
            (directory / f"{library}.1").symlink_to(f"{library}.{version}")
        for name in others:
            (directory / name).write_text("")
        return directory

    def run(self, **variables: str) -> str:
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.root / "tmp"), **variables}
        # nixpkgs' bash for scripts has no completion: once no driver was ever found, since `compgen` wasn't.
        plain = self.root / "bashrc"
        plain.write_text("enable -n compgen complete compopt\n")
        environment["BASH_ENV"] = str(plain)
        command = ["bash", "-o", "errexit", "-o", "nounset", "-o", "pipefail", str(SCRIPT), str(self.root)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.removesuffix("\n")

    def links(self) -> dict[str, str]:
        """Name to content of what the server would find."""
        directory = Path(self.run(XDG_RUNTIME_DIR=str(self.runtime)))
        assert directory == self.runtime / "forgelm" / "driver"
        return {path.name: path.read_text() for path in directory.iterdir() if path.is_symlink()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("place", ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib/wsl/lib"])
def test_driver_and_nothing_else_is_linked(machine: Machine, place: str):
    machine.driver(place)
    wanted = {CUDA, "libcuda.so.580.1", NVML, "libnvidia-ml.so.580.1"}
    assert machine.links() == dict.fromkeys(wanted, place)


def test_without_a_driver_nothing_is_printed_or_made(machine: Machine):
    (machine.root / "usr/lib64").mkdir(parents=True)
    assert machine.run(XDG_RUNTIME_DIR=str(machine.runtime)) == ""
    assert list(machine.runtime.iterdir()) == list((machine.root / "tmp").iterdir()) == []


def test_nixos_needs_nothing(machine: Machine):
    machine.driver("usr/lib64")
    (machine.root / "run/opengl-driver/lib").mkdir(parents=True)
    assert machine.run(XDG_RUNTIME_DIR=str(machine.runtime)) == ""


def test_a_path_that_leads_to_a_driver_is_left_alone(machine: Machine):
    """In a container the toolkit has put it there; elsewhere the user has."""
    machine.driver("usr/lib64")
    given = machine.driver("opt/driver", others=())  # bash itself would take them
    assert machine.run(LD_LIBRARY_PATH=f"/nowhere:{given}", XDG_RUNTIME_DIR=str(machine.runtime)) == ""
    assert machine.run(LD_LIBRARY_PATH=":/nowhere", XDG_RUNTIME_DIR=str(machine.runtime)) != ""


def test_loaders_cache_is_asked_last(machine: Machine):
    machine.driver("opt/nvidia/lib")
    machine.driver("opt/lib32")
    (machine.root / "sbin").mkdir()
    ldconfig = machine.root / "sbin" / "ldconfig"
    ldconfig.write_text(
        "#!/bin/sh\n[ \"$1\" = -p ] && cat <<'EOF'\n"
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6) => /opt/lib32/libcuda.so.1\n"
        "\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /opt/nvidia/lib/libcuda.so.1\n"
        "EOF\n"
    )
    ldconfig.chmod(0o755)
    assert machine.links()[CUDA] == "opt/nvidia/lib"
    machine.driver("usr/lib64")
    assert machine.links()[CUDA] == "usr/lib64"


def test_cuda_without_nvml(machine: Machine):
    (machine.driver("usr/lib64") / NVML).unlink()
    assert set(machine.links()) == {CUDA, "libcuda.so.580.1"}


def test_what_the_driver_loads_itself_is_linked_too(machine: Machine):
    """Its compiler, without which no card runs that is newer than those the code was built for; and WSL's device."""
    own = {"libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-gpucomp.so.580.1", "libdxcore.so"}
    machine.driver("usr/lib64", others=(*OTHERS, *own))
    assert set(machine.links()) == {CUDA, "libcuda.so.580.1", NVML, "libnvidia-ml.so.580.1", *own}


def test_a_replaced_driver_leaves_no_dead_link(machine: Machine):
    directory = machine.driver("usr/lib64", "570.9")
    assert "libcuda.so.570.9" in machine.links()
    for name in ("libcuda.so.570.9", "libnvidia-ml.so.570.9"):
        (directory / name).unlink()
    machine.driver("usr/lib64", "580.1")
    assert set(machine.links()) == {CUDA, "libcuda.so.580.1", NVML, "libnvidia-ml.so.580.1"}


@pytest.mark.parametrize("runtime", ["", "/proc/nowhere"])
def test_without_a_runtime_directory_a_temporary_one_is_used(machine: Machine, runtime: str):
    machine.driver("usr/lib64")
    directory = Path(machine.run(XDG_RUNTIME_DIR=runtime))
    assert directory.parent == machine.root / "tmp"
    assert directory.stat().st_mode & 0o077 == 0  # nobody else may put a library there
    assert (directory / CUDA).read_text() == "usr/lib64"


def test_where_nothing_can_be_written_the_server_still_starts(machine: Machine):
    machine.driver("usr/lib64")
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/proc/nowhere"}
    done = subprocess.run(["bash", str(SCRIPT), str(machine.root)], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
