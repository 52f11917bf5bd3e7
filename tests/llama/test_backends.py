"""A portable build's modules: chosen by llama.cpp's own score, and a GPU's left out where its driver isn't."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgelm.llama import backends

# What ggml asks of a module, and a libggml that remembers what it was given.
SCORE = "int ggml_backend_score(void) {{ return {score}; }}\n"
LIBRARY = """
#include <string.h>
static char names[4096];
static int count = {linked};
int ggml_backend_reg_count(void) {{ return count; }}
void *ggml_backend_load(const char *path) {{ strcat(names, path); strcat(names, "\\n"); count++; return names; }}
const char *loaded(void) {{ return names; }}
"""


def compile_library(path: Path, source: str, *flags: str) -> None:
    command = [shutil.which("gcc") or "cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two processors' modules that run here, one that doesn't, and AMX's, which scores highest."""
    for name, score in {"haswell": 64, "x64": 1, "zen4": 0, "sapphirerapids": 9000}.items():
        compile_library(tmp_path / f"libggml-cpu-{name}.so", SCORE.format(score=score))
    return tmp_path


def made_up_ggml(directory: Path, *, linked: int = 0) -> Any:
    compile_library(directory / "libggml.so", LIBRARY.format(linked=linked))
    library = ctypes.CDLL(str(directory / "libggml.so"))
    library.loaded.restype = ctypes.c_char_p
    return library


def names(library: Any) -> list[str]:
    return [Path(line).name for line in library.loaded().decode().splitlines()]


def test_the_best_module_that_runs_here_is_taken_and_never_amx(directory: Path) -> None:
    library = made_up_ggml(directory)
    backends.load_backends(library, directory)
    assert names(library) == ["libggml-cpu-haswell.so"]
    backends.load_backends(library, directory)
    assert names(library) == ["libggml-cpu-haswell.so"], "a second call loads nothing again"


def test_a_gpu_comes_first_and_one_without_its_driver_is_told_of(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_refused", {})
    compile_library(directory / "libggml-vulkan.so", "int answer = 1;\n")
    (directory / "stub").mkdir()
    compile_library(directory / "stub" / "libcuda.so", "int cuInit;\n", "-Wl,-soname,libnodriver.so.1")
    compile_library(
        directory / "libggml-cuda.so", "extern int cuInit; int *use = &cuInit;\n", f"-L{directory / 'stub'}", "-lcuda"
    )
    library = made_up_ggml(directory)
    backends.load_backends(library, directory)
    assert names(library) == ["libggml-vulkan.so", "libggml-cpu-haswell.so"]
    assert backends.refused_backends().keys() == {"cuda"}
    assert "libnodriver.so.1" in backends.refused_backends()["cuda"]


def test_a_build_with_its_backends_linked_in_is_left_alone(directory: Path) -> None:
    library = made_up_ggml(directory, linked=1)
    backends.load_backends(library, directory)
    assert names(library) == []


def test_a_processor_that_runs_none_has_none(tmp_path: Path) -> None:
    compile_library(tmp_path / "libggml-cpu-zen4.so", SCORE.format(score=0))
    assert backends.best_for_this_processor(tmp_path) is None


def test_the_installed_build_has_a_processor_backend() -> None:
    """In a process of its own, as the engine starts."""
    program = (
        "from forgelm.llama.lib import L, start\nstart()\n"
        "from llama_cpp._ggml import libggml\nprint(libggml.ggml_backend_reg_count())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) >= 1
