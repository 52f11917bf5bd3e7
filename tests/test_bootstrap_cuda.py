"""The CUDA toolkit that set-up puts together out of wheels: here of small made-up ones, with the real compiler."""

import ctypes
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from forgelm import bootstrap_cuda as cuda
from forgelm.bootstrap_run import SetupError
from tests.test_bootstrap import Clone

CXX = next(name for name in ("g++", "c++", "clang++") if shutil.which(name))
CALLS = {
    *("cuDeviceGet", "cuDeviceGetAttribute", "cuGetErrorString", "cuMemAddressFree", "cuMemAddressReserve"),
    *("cuMemCreate", "cuMemGetAllocationGranularity", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap"),
}
"""What a real libggml-cuda.so leaves undefined (`nm -D --undefined-only`)."""
FILES = {
    "nvidia_cuda_nvcc": ("bin/nvcc", "bin/ptxas"),
    "nvidia_nvvm": ("nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"),
    "nvidia_cuda_runtime": ("include/cuda.h", "lib/libcudart.so.13"),
    "nvidia_cublas": ("lib/libcublas.so.13", "lib/libcublasLt.so.13"),
    "nvidia_cuda_cccl": ("include/cccl/cub.h",),
    "nvidia_cuda_crt": ("include/crt/mma.h",),
}
PIP = """#!/bin/sh
# A Python whose pip copies what is "on the index" into -d, or installs nothing.
echo "$@" >> "$OFFER/asked"
while [ $# -gt 0 ]; do
    [ "$1" = -d ] && mkdir -p "$2" && cp "$OFFER"/*.whl "$2"
    shift
done
"""


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheels of the pins, small, on a pretended index; and a cache of the test's own."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name, files in FILES.items():
        version = cuda.read_pins()["wheels"][name.replace("_", "-")]["version"]
        make_wheel(directory, name, version, *files)
    monkeypatch.setenv("OFFER", str(directory))
    monkeypatch.setenv("HOME", str(tmp_path / "a home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a home" / "cache"))
    return directory


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a `.venv`, as far as fetching goes."""
    path = tmp_path / "python"
    path.write_text(PIP)
    path.chmod(0o755)
    return path


def make_wheel(directory: Path, name: str, version: str, *files: str, content: str = "") -> Path:
    path = directory / f"{name}-{version}-py3-none-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(f"nvidia/cu13/{file}", content or f"{name} {version}")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\n")
    return path


def asked(offer: Path) -> list[str]:
    path = offer / "asked"
    return path.read_text().splitlines() if path.exists() else []


def leftovers(kit: Path) -> set[str]:
    """What lies beside the toolkit."""
    return {path.name for path in kit.parent.iterdir()} - {kit.name, "wheels", "requirements.txt"}


# ---- the toolkit -----------------------------------------------------------------------------------------------------


def test_wheels_become_a_toolkit(offer: Path, tmp_path: Path) -> None:
    kit = tmp_path / "13.0"
    cuda.assemble(sorted(offer.glob("*.whl")), kit, CXX)
    for program in ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc"):
        assert os.access(kit / program, os.X_OK), program
    assert not (kit / "include" / "cuda.h").stat().st_mode & stat.S_IXUSR
    for name in ("cudart", "cublas", "cublasLt"):
        assert (kit / "lib64" / f"lib{name}.so").resolve() == kit / "lib" / f"lib{name}.so.13"
    assert (kit / "lib" / "stubs" / "libcuda.so").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"index", "13.0"}


def test_the_toolkit_is_fetched_once(offer: Path, python: Path) -> None:
    kit = cuda.toolkit(python, CXX)
    assert cuda.toolkit(python, CXX) == kit
    (command,) = asked(offer)
    assert "--require-hashes" in command
    assert leftovers(kit) == set()


@pytest.mark.parametrize("when", ["unpacking", "linking"])
def test_an_interruption_leaves_nothing_half(
    offer: Path, python: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cuda, "programs" if when == "unpacking" else "link_driver", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cuda.toolkit(python, CXX)
    (half,) = (path for path in (Path(os.environ["XDG_CACHE_HOME"]) / "forgelm" / "cuda").glob("*.new"))
    (half / "stale").write_text("of the first attempt")
    kit = cuda.toolkit(python, CXX)
    assert (kit / "lib" / "stubs" / "libcuda.so").is_file()
    assert not (kit / "stale").exists()
    assert leftovers(kit) == set()


def test_a_damaged_wheel_leaves_nothing_half(offer: Path, python: Path) -> None:
    broken = next(offer.glob("nvidia_nvvm-*"))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-30])
    with pytest.raises(zipfile.BadZipFile):
        cuda.toolkit(python, CXX)
    broken.write_bytes(whole)
    kit = cuda.toolkit(python, CXX)
    assert (kit / "nvvm" / "bin" / "cicc").is_file()
    assert leftovers(kit) == set()


def test_other_pins_are_another_toolkit(
    offer: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels of earlier pins stay in the cache; once a newer cuBLAS was mixed into, or hidden by, the older toolkit."""
    before = cuda.toolkit(python, CXX)
    pins = json.loads(cuda.PINS.read_text())
    pins["cuda"]["wheels"]["nvidia-cublas"]["version"] = "13.0.0.1"
    changed = tmp_path / "pins.json"
    changed.write_text(json.dumps(pins))
    monkeypatch.setattr(cuda, "PINS", changed)
    make_wheel(offer, "nvidia_cublas", "13.0.0.1", *FILES["nvidia_cublas"])
    after = cuda.toolkit(python, CXX)
    assert after != before
    assert (after / "lib" / "libcublas.so.13").read_text() == "nvidia_cublas 13.0.0.1"
    assert (before / "lib" / "libcublas.so.13").read_text() != "nvidia_cublas 13.0.0.1"


# ---- the driver's stand-in -------------------------------------------------------------------------------------------


def test_the_driver_has_the_names_that_llama_cpp_links(tmp_path: Path) -> None:
    cuda.link_driver(tmp_path / "stubs", CXX)
    library = tmp_path / "stubs" / "libcuda.so"
    handle = ctypes.CDLL(str(library))
    assert {name for name in CALLS if hasattr(handle, name)} == CALLS == set(cuda.DRIVER_CALLS)
    dynamic = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libcuda.so.1"]


def test_what_links_it_asks_for_the_drivers_own_name(tmp_path: Path) -> None:
    """So that on a machine with a card the real driver is loaded, and without one nothing pretends to be it."""
    cuda.link_driver(tmp_path / "stubs", CXX)
    source = tmp_path / "user.cpp"
    source.write_text('extern "C" int cuMemMap(void);\nextern "C" int user() { return cuMemMap(); }\n')
    command = [CXX, "-shared", "-fPIC", "-o", "libuser.so", source.name, "-Lstubs", "-lcuda", "-Wl,--no-undefined"]
    subprocess.run(command, cwd=tmp_path, check=True)
    dynamic = subprocess.run(["readelf", "-d", "libuser.so"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "libcuda.so.1" in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic.stdout)


def test_a_compiler_that_cannot_make_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="can't make a library") as error:
        cuda.link_driver(tmp_path / "stubs", f"{CXX} -no-such-flag")
    assert str(error.value).startswith(f"{CXX} -no-such-flag")


# ---- CMake's arguments -----------------------------------------------------------------------------------------------


def test_arguments_name_the_toolkit_in_a_home_with_spaces(offer: Path, python: Path) -> None:
    arguments = shlex.split(cuda.cmake_arguments(python, "", CXX))
    kit = cuda.toolkit(python, CXX)
    assert " " in str(kit)
    assert all(argument.startswith("-D") for argument in arguments)
    assert {f"-DCUDAToolkit_ROOT={kit}", f"-DCMAKE_CUDA_COMPILER={kit}/bin/nvcc"} <= set(arguments)
    assert "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-rpath,\\$ORIGIN/../../nvidia/cu13/lib" in arguments
    assert f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(cuda.read_pins()['architectures'])}" in arguments


@pytest.mark.parametrize("before", ["", "ccache ", "/usr/bin/sccache "])
def test_nvcc_gets_the_compiler_itself(before: str) -> None:
    assert cuda.host_compiler(f"{before}{CXX} -m64") == shutil.which(CXX)


def test_the_libraries_are_installed_from_what_was_fetched(offer: Path, python: Path) -> None:
    cuda.install_libraries(python)
    (command,) = asked(offer)
    words = command.split()
    assert {"install", "--no-deps", "--require-hashes", "--find-links"} <= set(words)
    wanted = (Path(os.environ["XDG_CACHE_HOME"]) / "forgelm" / "cuda" / "requirements-run.txt").read_text()
    assert wanted == cuda.requirements("run")
    assert "nvidia-cublas" in wanted
    assert "nvcc" not in wanted


# ---- set-up with CUDA, the pretended pip of test_bootstrap -----------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "a clone", tmp_path / "home")


def test_a_compiler_that_is_no_program_is_one_line(clone: Clone) -> None:
    result = clone.run(FORGELM_BUILD_CUDA="1", CUDACXX="/nowhere/nvcc")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "CUDACXX=/nowhere/nvcc is no program\n")
    assert not (clone.root / ".venv").exists()


def test_a_cuda_build_that_cannot_begin_leaves_what_is_there_in_use(clone: Clone) -> None:
    """Once the wrong CUDACXX was remembered, and plain runs failed from then on."""
    assert clone.run().returncode == 0
    before = clone.stamp()
    assert clone.run(FORGELM_BUILD_CUDA="1", CUDACXX="/nowhere/nvcc").returncode == 1
    assert clone.stamp() == before
    silent = clone.run()
    assert (silent.returncode, silent.stdout) == (0, "")


@pytest.mark.parametrize("text", ["{", "{}", None])
def test_pins_that_cannot_be_read_are_one_line_and_matter_to_cuda_alone(clone: Clone, text: str | None) -> None:
    pins = clone.root / "containers" / "pins.json"
    if text is None:
        pins.unlink()
    else:
        pins.write_text(text)
    assert clone.run().returncode == 0
    failed = clone.run(FORGELM_BUILD_CUDA="1")
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert failed.stderr.startswith(f"{pins} can't be read (")
    assert failed.stderr.endswith("git checkout containers/pins.json\n")


def test_own_arguments_come_last(clone: Clone) -> None:
    """CMake lets the last of two win, so whatever set-up says can be overruled."""
    own = "-DCMAKE_CUDA_ARCHITECTURES=90 '-DX=a b'"
    true = shutil.which("true")
    result = clone.run(FORGELM_BUILD_CUDA="1", CUDACXX=str(true), CMAKE_ARGS=own)
    assert result.returncode == 0, result.stderr
    ((_, cmake),) = clone.asked("wheel")
    arguments = shlex.split(cmake)
    assert arguments[-2:] == ["-DCMAKE_CUDA_ARCHITECTURES=90", "-DX=a b"]
    assert {"-DGGML_CUDA=ON", "-DGGML_BACKEND_DL=ON", f"-DCMAKE_CUDA_COMPILER={true}"} <= set(arguments)
    libraries = [arguments for arguments, _ in clone.asked("install") if "--find-links" in arguments]
    assert libraries == [], "those of the wheels may be another CUDA than this compiler's"
