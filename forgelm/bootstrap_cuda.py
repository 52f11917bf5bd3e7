"""A CUDA toolkit out of NVIDIA's wheels, for machines without one: what nvcc needs to compile, and what runs later.

Part of `forgelm/bootstrap.py`, so the standard library only. Versions and hashes are those of `containers/pins.json`.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forgelm import paths
from forgelm.bootstrap_run import Progress, SetupError, exclusive, fail, log_path, run_pip

PINS = Path(__file__).resolve().parent.parent / "containers" / "pins.json"
BUILD, RUN, CHECK = "build", "run", "check"
"""What a wheel of the pins is for."""
LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
"""Programs that people write before their compiler's name."""
LIBRARIES = ("libcudart", "libcublas", "libcublasLt")
# The calls of CUDA's driver that llama.cpp links. The driver comes with the card, so nothing but their names is here.
DRIVER_CALLS = (
    *("cuDeviceGet", "cuDeviceGetAttribute", "cuGetErrorString", "cuMemAddressFree", "cuMemAddressReserve"),
    *("cuMemCreate", "cuMemGetAllocationGranularity", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap"),
)
RUNPATH = "$ORIGIN/../../nvidia/cu13/lib"
"""From `llama_cpp/lib` to where the wheels put CUDA's libraries, both in the same site-packages."""


def read_pins() -> dict[str, Any]:
    """The `cuda` part of the pins: `toolkit`, `driver`, `architectures`, `wheels`. Raises `SetupError`."""
    try:
        cuda: dict[str, Any] = json.loads(PINS.read_text())["cuda"]
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{PINS} can't be read ({error}): git checkout containers/pins.json") from None
    return cuda


def requirements(*purposes: str) -> str:
    """Requirements with hashes, in pip's format, of the wheels that are for one of these purposes."""
    return "".join(
        f"{name}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n"
        for name, wheel in read_pins()["wheels"].items()
        if wheel["for"] in purposes
    )


def cmake_arguments(python: Path, compiler: str, cxx: str) -> str:
    """CMake's arguments for a build with CUDA. Raises `SetupError`.

    `compiler` is an nvcc of this machine (`CUDACXX`), with the rest of its toolkit around it; "" takes the wheels.
    `cxx` is the C++ compiler beside nvcc.
    """
    pins = read_pins()
    arguments = [
        "-DGGML_CUDA=ON",
        # Without "-real" the file holds PTX too, from which newer cards compile their code at the first start.
        f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(pins['architectures'])}",
        "-DGGML_CUDA_NCCL=OFF",
        f"-DCMAKE_CUDA_HOST_COMPILER={host_compiler(cxx)}",
        f"-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-rpath,\\{RUNPATH}",
    ]
    if not compiler:
        kit = toolkit(python, cxx)
        compiler = str(kit / "bin" / "nvcc")
        arguments.append(f"-DCUDAToolkit_ROOT={kit}")
    return shlex.join([*arguments, f"-DCMAKE_CUDA_COMPILER={compiler}"])


def check_compiler(compiler: str) -> None:
    """Raises `SetupError` if `CUDACXX` names no program; "" is fine."""
    if compiler and not shutil.which(compiler):
        raise SetupError(f"CUDACXX={compiler} is no program")


def host_compiler(cxx: str) -> str:
    """The program that nvcc has compile the host's part: the compiler itself, without a cache before it or flags."""
    name = next(word for word in cxx.split() if Path(word).name not in LAUNCHERS)
    return shutil.which(name) or name


def toolkit(python: Path, cxx: str) -> Path:
    """The toolkit's directory in the user's cache; fetched and put together now if it isn't there."""
    version: str = read_pins()["wheels"]["nvidia-cuda-nvcc"]["version"]
    # Of all its wheels: a newer cuBLAS beside the same compiler is another toolkit.
    name = f"{version}-{hashlib.sha256(requirements(BUILD, RUN).encode()).hexdigest()[:8]}"
    directory = paths.cache_dir() / "cuda"
    directory.mkdir(parents=True, exist_ok=True)
    kit = directory / name
    with exclusive(directory, "another fetch of CUDA"):
        if not kit.is_dir():
            wheels = fetch(python, directory)
            half = directory / f"{name}.new"
            shutil.rmtree(half, ignore_errors=True)
            assemble(wheels, half, cxx)
            half.rename(kit)
    return kit


def fetch(python: Path, directory: Path) -> list[Path]:
    """The wheels, their hashes checked; they stay, since `.venv` takes what runs later from them."""
    wheels = directory / "wheels"
    wanted = directory / "requirements.txt"
    wanted.write_text(requirements(BUILD, RUN))
    log = log_path("cuda")
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-d", str(wheels)]
    print("CUDA's compiler and libraries: about 530 MB", flush=True)
    if run_pip(python, [*arguments, "-r", str(wanted)], log=log, progress=Progress("CUDA")):
        fail("CUDA's compiler can't be fetched (that needs the network).", log)
    # Those of earlier pins lie there too.
    pins = read_pins()["wheels"].items()
    pinned = {f"{name.replace('-', '_')}-{pin['version']}" for name, pin in pins if pin["for"] in (BUILD, RUN)}
    return sorted(path for path in wheels.glob("*.whl") if "-".join(path.name.split("-")[:2]) in pinned)


def assemble(wheels: list[Path], kit: Path, cxx: str) -> None:
    """Lay the wheels out as an installed toolkit: the names that linkers look for, and a driver to link against."""
    unpacked = kit.with_name(f"{kit.name}.unpacked")
    shutil.rmtree(unpacked, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    next((unpacked / "nvidia").iterdir()).rename(kit)
    shutil.rmtree(unpacked)
    for program in programs(kit):
        program.chmod(0o755)
    (kit / "lib64").symlink_to("lib")
    for name in LIBRARIES:
        versioned = next((kit / "lib").glob(f"{name}.so.*"))
        (kit / "lib" / f"{name}.so").symlink_to(versioned.name)
    link_driver(kit / "lib" / "stubs", cxx)


def programs(kit: Path) -> Iterator[Path]:
    """The toolkit's programs; zipfile forgets that they may be run."""
    for directory in (kit / "bin", kit / "nvvm" / "bin"):
        yield from (path for path in directory.iterdir() if path.is_file())


def link_driver(directory: Path, cxx: str) -> None:
    """A `libcuda.so` that has the driver's names and nothing else, as CUDA's own toolkit brings one."""
    directory.mkdir()
    source = directory / "libcuda.c"
    source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in DRIVER_CALLS))
    command = [*cxx.split(), "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so", source.name]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{cxx} can't make a library: {done.stderr.strip()[:200]}")


def install_libraries(python: Path) -> None:
    """Install CUDA's own libraries into `.venv`, from the wheels that were fetched for compiling or anew."""
    wanted = paths.cache_dir() / "cuda" / "requirements-run.txt"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.write_text(requirements(RUN))
    found = os.fspath(paths.cache_dir() / "cuda" / "wheels")
    log = log_path("cuda-libraries")
    arguments = ["install", "--no-deps", "--require-hashes", "--find-links", found, "-r", str(wanted)]
    if run_pip(python, arguments, log=log, progress=Progress("CUDA's libraries")):
        fail("CUDA's libraries can't be installed.", log)
