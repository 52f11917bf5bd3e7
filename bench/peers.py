"""Builds the programs ForgeLM is compared with, once, from the sources its own engine was built from.

`llama-server` and `llama-batched-bench` come from the llama-cpp-python sdist of the installed version, so both sides
run the same llama.cpp commit with the same compiler and the same flags: Release, shared libraries, GGML_NATIVE and
OpenMP as detected, and whatever `CMAKE_ARGS` holds. Left out is what no comparison needs: TLS, curl, the web interface
(its assets would be downloaded). Knows nothing of what is measured.
"""

import argparse
import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forgelm import paths
from forgelm.bootstrap_engine import accepted, flags_for
from forgelm.bootstrap_mode import MODES

DISTRIBUTION = "llama-cpp-python"
PROGRAMS = ("llama-server", "llama-batched-bench")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # The programs are moved out of the build tree, which is then deleted: they find their libraries beside them.
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)


class PeerError(Exception):
    """The peers can't be built here; the message says what to do."""


@dataclass(frozen=True)
class Peers:
    """Where the peers' programs are."""

    directory: Path

    @property
    def server(self) -> Path:
        return self.directory / "llama-server"

    @property
    def batched_bench(self) -> Path:
        return self.directory / "llama-batched-bench"

    def complete(self) -> bool:
        """Whether every program is there."""
        return all((self.directory / name).is_file() for name in PROGRAMS)


def engine_version() -> str:
    """The version of the bindings the engine runs, and so of the sources to build."""
    return importlib.metadata.version(DISTRIBUTION)


def cmake_flags() -> tuple[str, ...]:
    """Ours, with the engine's own compiler flags, then `CMAKE_ARGS`, which the engine's build reads too."""
    flags = accepted(flags_for(MODES["native"]), os.environ.get("CC", "cc"))
    compiler = tuple(f"-DCMAKE_{language}_FLAGS={flags}" for language in ("C", "CXX"))
    return FLAGS + compiler + tuple(shlex.split(os.environ.get("CMAKE_ARGS", "")))


def destination() -> Path:
    """One directory per version and set of flags, so that a changed flag builds again."""
    key = hashlib.sha256("\0".join(cmake_flags()).encode()).hexdigest()[:12]
    return paths.cache_dir() / "bench" / f"llama-{engine_version()}-{key}"


def ensure(sdist: Path | None = None) -> Peers:
    """The peers, built first where they are missing (about ten minutes on two cores). Raises `PeerError`."""
    peers = Peers(destination())
    if peers.complete():
        return peers
    peers.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=peers.directory.parent, prefix="build-") as scratch:
        work = Path(scratch)
        _compile(source(sdist, work) / "vendor" / "llama.cpp", work / "build")
        _install(work / "build" / "bin", peers.directory)
    return peers


def source(sdist: Path | None, work: Path) -> Path:
    """The unpacked sources of the bindings, below `work`; downloaded without `sdist`. Raises `PeerError`."""
    return _unpack(sdist or _download(work), work)


def _download(work: Path) -> Path:
    """The sdist, through pip and the index it is configured with.

    Only this package is forced to be a source: its build backend (which pip runs for the metadata) may be a wheel.
    """
    requirement = f"{DISTRIBUTION}=={engine_version()}"
    options = ["--no-deps", "--no-binary", DISTRIBUTION, "--dest", str(work)]
    run([sys.executable, "-m", "pip", "download", *options, requirement], "download the sources")
    found = sorted(work.glob("*.tar.gz"))
    if not found:
        raise PeerError(f"pip downloaded no source archive of {requirement}; name one with --sdist")
    return found[0]


def _unpack(sdist: Path, work: Path) -> Path:
    """Returns the top directory of the unpacked `sdist`."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "source", filter="data")
    found = sorted((work / "source").glob("*/vendor/llama.cpp/CMakeLists.txt"))
    if not found:
        raise PeerError(f"{sdist} holds no vendor/llama.cpp: it is no {DISTRIBUTION} sdist")
    return found[0].parents[2]


def _compile(source: Path, build: Path) -> None:
    cmake, ninja = _tool("cmake"), _tool("ninja")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run([cmake, "-S", str(source), "-B", str(build), *generator, *cmake_flags()], "configure llama.cpp")
    # Niced, since others may be measuring or working on the same cores.
    run(["nice", cmake, "--build", str(build), "--target", *PROGRAMS], "build llama.cpp")


def _install(binaries: Path, directory: Path) -> None:
    """Move the finished build into place with one rename, so that a half copy is never taken for a build."""
    staged = directory.with_name(directory.name + ".new")
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(binaries, staged, symlinks=True)
    shutil.rmtree(directory, ignore_errors=True)
    staged.rename(directory)


def _tool(name: str) -> str:
    """`name` from PATH, or from the environment of this Python (pip ships cmake and ninja)."""
    search = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which(name, path=search)
    if found is None:
        raise PeerError(f"{name} is missing: install it, or run `{sys.executable} -m pip install {name}`")
    return found


def run(command: Sequence[str], purpose: str) -> None:
    """Run a program to its end. Raises `PeerError` where it fails."""
    print("+", shlex.join(command), file=sys.stderr)
    # Output goes to stderr: stdout is for the path alone, so that scripts can read it.
    result = subprocess.run(command, check=False, stdout=sys.stderr)
    if result.returncode != 0:
        raise PeerError(f"could not {purpose} (exit status {result.returncode}); the output is above")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build llama-server and llama-batched-bench, once.")
    parser.add_argument("--sdist", type=Path, help=f"the {DISTRIBUTION} source archive; downloaded if not given")
    arguments = parser.parse_args()
    try:
        peers = ensure(arguments.sdist)
    except PeerError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    print(peers.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
