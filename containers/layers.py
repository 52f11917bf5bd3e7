"""Lays the `.venv` that set-up made out as an image's layers: `layers.py CLONE OUT`, under Debian's own python3.

Each folder of OUT is a layer's files as they lie in the image: `cuda`, `engine` and `packages`, each changing more
rarely than the next. Only what a server needs is taken: no pip, no headers, no programs but `forgelm`. It knows wheels
and their files, and nothing of how they came there; the standard library only.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ENGINE = "llama-cpp-python"
SETTING_UP = ("pip", "setuptools", "wheel")
"""What installing needed."""
SKELETON = ("pyvenv.cfg", "bin/python", "bin/python3", "bin/forgelm", "lib64")
"""Of `.venv` itself."""
CUDA_LIBRARIES = ("libcudart.so", "libcublas.so", "libcublasLt.so")
UNUSED = ("libggml-cpu-sapphirerapids.so",)
"""Virtual machines announce AMX and fault at its first instruction."""


def main() -> None:
    """Fill OUT."""
    clone, out = (Path(argument).absolute() for argument in sys.argv[1:])
    venv = clone / ".venv"
    (site,) = venv.glob("lib/python*/site-packages")
    cuda = json.loads((clone / "containers" / "pins.json").read_text())["cuda"]["wheels"]
    for layer in ("cuda", "engine", "packages"):
        (out / layer).mkdir(parents=True)
    for wheel in importlib.metadata.distributions(path=[str(site)]):
        name = wheel.metadata["Name"].lower().replace("_", "-")
        if name not in SETTING_UP:
            layer = "cuda" if name in cuda else "engine" if name == ENGINE else "packages"
            for file in wheel.files or ():
                if is_needed(Path(str(file)), layer):
                    put(site / str(file), out / layer)
    for place in (*(venv / name for name in SKELETON), site / "forgelm.pth"):
        put(place, out / "packages")
    for layer in ("cuda", "engine", "packages"):
        compile_bytes(out / layer)


def is_needed(file: Path, layer: str) -> bool:
    """Whether a server uses that file, its path relative to site-packages."""
    if file.parts[0] == ".." or file.suffix == ".pyc" or file.name in UNUSED:
        return False
    if layer != "cuda" or ".dist-info" in file.parts[0]:
        return True
    return file.name.startswith(CUDA_LIBRARIES)


def put(file: Path, layer: Path) -> None:
    """Copy a file or a link to where it lies in the image."""
    target = layer / file.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target, follow_symlinks=False)


def compile_bytes(layer: Path) -> None:
    """Bytecode that is the same in every build: it neither holds times nor is it checked against the sources'."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    # A set's order in the bytecode would otherwise be another one in each run.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    # Some wheels bring templates of Python files that are none.
    subprocess.run([*command, "-s", str(layer), "-p", "/", str(layer)], env=environment, check=False)


if __name__ == "__main__":
    main()
