"""The engine's wheel: llama-cpp-python, compiled from its sdist once per processor and kept in the user's cache.

Part of `forgelm/bootstrap.py`, so the standard library only. It knows where a wheel lies and how one is made, and
nothing of the rest of `.venv`, whose pip it uses.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from forgelm import bootstrap_cuda as cuda
from forgelm import paths
from forgelm.bootstrap_mode import Mode, mode_of, with_cuda
from forgelm.bootstrap_run import Progress, SetupError, clock, exclusive, fail, log_path, run_pip

NAME = "llama-cpp-python"
LEFT_OUT = {
    # Virtual machines announce AMX and fault at its first instruction; only server processors have it at all.
    "amx": "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16",
    # llama.cpp then adds up attention in half precision, which took a third off decode where it was measured.
    "avx512_fp16": "-mno-avx512fp16",
}
"""Start of a processor's feature → flags that keep compilers from using it."""
BUILD_VARIABLES = (
    *("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDACXX"),
    *("FORGELM_BUILD_MODE", "FORGELM_BUILD_CUDA"),
)
"""What changes the compiled code, beside the processor."""

CPU_FEATURE = re.compile(r"v?p?(sse|ssse|avx|amx|fma|bmi|aes|sha|gfni|clmul|f16c|popcnt|abm|movbe|adx|xop|apx)")
"""Kernels add flags for bugs and mitigations with every update; only what a compiler can use names a wheel."""


def wheel_key(version: str, build: dict[str, str]) -> str:
    """Names a compiled wheel: equal keys run on the same machines. Python's version is no part of it (ctypes).

    Raises `SetupError` for a build that there isn't.
    """
    mode = mode_of(build)
    variables = [f"{name}={build[name]}" for name in BUILD_VARIABLES if build[name] and not name.startswith("FORGELM_")]
    processor = cpu_features() if mode.tied else []
    toolkit = [cuda.requirements(cuda.BUILD, cuda.RUN), *cuda.read_pins()["architectures"]] if with_cuda(build) else []
    parts = [version, mode.cmake, flags_for(mode), *variables, platform.machine(), c_library(), *processor, *toolkit]
    return f"{NAME}-{version}-{platform.machine()}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}"


def flags_for(mode: Mode) -> str:
    """What compiling for this very processor wants beside `-march=native`; a compiler may not know all of it."""
    here = cpu_features() if mode.tied else []
    return " ".join(flags for start, flags in LEFT_OUT.items() if any(feature.startswith(start) for feature in here))


def accepted(flags: str, compiler: str) -> str:
    """Those flags that the compiler knows: an older one has no such instructions to leave out, and refuses the flag."""
    known = [flag for flag in flags.split() if _knows(compiler, flag)]
    return " ".join(known)


def _knows(compiler: str, flag: str) -> bool:
    command = [*compiler.split(), "-E", "-x", "c", os.devnull, "-o", os.devnull, flag]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def c_library() -> str:
    """Name and version of the C library: code linked with a newer one doesn't load on an older (a shared home)."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def cpu_features() -> list[str]:
    """Instruction sets of this processor: llama.cpp compiles with `-march=native`, so they decide who can run it."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return sorted(flag for flag in value.split() if CPU_FEATURE.match(flag))
            if name.strip() == "Features":  # 64-bit ARM
                return sorted(value.split())
    return [platform.processor()]


def wheels_dir(key: str) -> Path:
    """Where the compiled wheel of that key lies, with the log of its compilation."""
    return paths.cache_dir() / "wheels" / key


def find_wheel(key: str) -> Path | None:
    """The compiled wheel of that key, if this machine has it."""
    return next(wheels_dir(key).glob("*.whl"), None)


def find_compilers(build: dict[str, str]) -> dict[str, str]:
    """`CC` and `CXX`: those in `build`, or what this machine has.

    Raises `SetupError` with a line for each tool that compiling needs and that isn't here.
    """
    needs = {
        "gcc": [build["CC"]] if build["CC"] else ["gcc", "cc", "clang"],
        "g++": [build["CXX"]] if build["CXX"] else ["g++", "c++", "clang++"],
        "make": ["make", "gmake"],
    }
    here = {tool: [name for name in names if shutil.which(name.split()[0])] for tool, names in needs.items()}
    missing = [tool for tool, names in here.items() if not names]
    if missing:
        raise SetupError("\n".join(f"{tool} is missing: sudo apt install {tool}" for tool in missing))
    return {"CC": here["gcc"][0], "CXX": here["g++"][0]}


def compiled_wheel(python: Path, key: str, build: dict[str, str], locked: str) -> Path:
    """The wheel in the cache, compiled now if it isn't there.

    `locked` is the package's block of the lock file. Raises `SetupError` after printing the end of the log.
    """
    directory = wheels_dir(key)
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory, "another compilation of llama.cpp"):
        wheel = find_wheel(key)
        if wheel is None:
            sources = fetch_sources(python, directory / "work", locked)
            wheel = compile_wheel(python, sources, directory, build)
            shutil.rmtree(directory / "work")
    return wheel


def fetch_sources(python: Path, work: Path, locked: str) -> Path:
    """The unpacked sdist, its hash checked against the lock. Its path is stable, so that compiling can be resumed."""
    sources = work / "sources"
    if sources.is_dir():
        return sources
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    requirements = work / "requirements.txt"
    requirements.write_text(locked)
    arguments = ["download", "--no-deps", "--no-binary", NAME, "--require-hashes", "-d", str(work)]
    log = log_path("sources")
    if run_pip(python, [*arguments, "-r", str(requirements)], log=log, progress=Progress("Sources of llama.cpp")):
        fail("The sources of llama-cpp-python can't be fetched (that needs the network).", log)
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work / "unpacked")
    next((work / "unpacked").iterdir()).rename(sources)
    return sources


def compile_wheel(python: Path, sources: Path, directory: Path, build: dict[str, str]) -> Path:
    """Compile into `directory`, showing how far it is. An interrupted build is resumed, a failed one starts afresh."""
    cores, mode = len(os.sched_getaffinity(0)), mode_of(build)
    log = directory / "build.log"
    seconds = mode.core_seconds / cores
    print(f"Compiling llama.cpp for {target(mode, build)}, once: about {clock(seconds)} min on {cores} cores")
    print(f"  log: {log}", flush=True)
    progress = Progress("llama.cpp", seconds)

    def count(line: str) -> None:
        if match := re.match(r"\s*\[(\d+)/(\d+)\] ", line):
            progress.update(int(match[1]), int(match[2]))

    objects, out, scratch = (sources.parent / name for name in ("build", "out", "tmp"))
    # Ours, since pip leaves some hundred megabytes behind when it is killed.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    arguments = ["wheel", "-v", "--no-deps", f"--config-settings=build-dir={objects}", *mode.pip, "-w", str(out)]
    arguments.append(str(sources))
    variables = {**compile_variables(python, mode, build), "TMPDIR": str(scratch)}
    if run_pip(python, arguments, log=log, progress=progress, on_line=count, variables=variables):
        shutil.rmtree(objects, ignore_errors=True)
        fail("llama.cpp didn't compile.", log)
    wheel = next(out.glob("*.whl"))
    return wheel.rename(directory / wheel.name)


def target(mode: Mode, build: dict[str, str]) -> str:
    """Who the code is for, in words."""
    if with_cuda(build):
        return "NVIDIA cards and any processor"
    return {"portable": "any processor", "dev": "a debugger"}.get(mode.name, "this processor")


def compile_variables(python: Path, mode: Mode, build: dict[str, str]) -> dict[str, str]:
    """The environment of the compilation, CMake's arguments among it."""
    # Named, since the build would otherwise ask for the compiler that this Python was built with.
    compilers = find_compilers(build)
    cuda_arguments = cuda.cmake_arguments(python, build["CUDACXX"], compilers["CXX"]) if with_cuda(build) else ""
    # The user's own come last: CMake lets the last of two win.
    flags = accepted(flags_for(mode), compilers["CC"])
    cmake = " ".join(filter(None, (mode.cmake, cuda_arguments, build["CMAKE_ARGS"])))
    return {
        **{name: value for name, value in build.items() if value},
        **compilers,
        "CMAKE_ARGS": cmake,
        **{name: f"{flags} {build[name]}".strip() for name in ("CFLAGS", "CXXFLAGS")},
    }


def install_wheel(python: Path, wheel: Path) -> None:
    """Install the compiled wheel over whatever build of it is there."""
    log = log_path("engine")
    arguments = ["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    if run_pip(python, arguments, log=log, progress=Progress("Engine")):
        fail(f"The compiled wheel can't be installed; delete {wheel} to compile it again.", log)
