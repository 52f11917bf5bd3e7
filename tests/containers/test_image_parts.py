"""The programs that make an image: the builder's command line, and how a `.venv` becomes layers."""

import json
import marshal
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.containers.stages import ROOT

PINS = json.loads((ROOT / "containers" / "pins.json").read_text())


def command(target: str, *flags: str) -> list[str]:
    """What `image.py` would run."""
    program = [sys.executable, str(ROOT / "containers" / "image.py"), target, "--print", *flags]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("builder", ["docker", "podman", "buildah"])
def test_the_labels_come_from_the_pins(builder: str) -> None:
    words = command("forgelm-cuda", "--with", builder, "--no-cache")
    assert words[0] == builder
    assert {f"LLAMA_CPP_COMMIT={PINS['llama_cpp']['commit']}", f"CUDA_DRIVER={PINS['cuda']['driver']}"} <= set(words)
    assert words[-2:] == ["--no-cache", str(ROOT)]
    assert ("--timestamp" in words) != any(word.startswith("SOURCE_DATE_EPOCH=") for word in words)
    tags = [words[place + 1] for place, word in enumerate(words) if word == "--tag"]
    assert "forgelm:latest-cuda" in tags
    assert "forgelm:latest" in command("forgelm", "--with", builder)


def test_every_argument_is_one_of_the_file() -> None:
    text = (ROOT / "containers" / "Containerfile").read_text()
    words = command("forgelm-cuda", "--with", "buildah")
    given = {words[place + 1].partition("=")[0] for place, word in enumerate(words) if word == "--build-arg"}
    assert given == {line[4:].partition("=")[0] for line in text.splitlines() if line.startswith("ARG ")} - {"BASE"}


def test_without_a_builder_one_line(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "containers" / "image.py"), "forgelm"]
    done = subprocess.run(program, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "neither docker nor podman nor buildah is here: sudo apt install buildah\n"


def wheel(site: Path, name: str, *files: str) -> None:
    """An installed package as pip leaves it."""
    record = [*files, f"{name.replace('-', '_')}-1.dist-info/METADATA"]
    for file in record:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("x = {'a', 'b', 'c', 'd'} == 1\n" if file.endswith(".py") else f"Name: {name}\n")
    (site / record[-1]).with_name("RECORD").write_text("".join(f"{file},,\n" for file in record))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A `.venv` that set-up could have made."""
    clone = tmp_path / "clone"
    site = clone / ".venv" / "lib" / "python3.11" / "site-packages"
    (clone / "containers").mkdir(parents=True)
    shutil.copy(ROOT / "containers" / "pins.json", clone / "containers")
    nvidia = "nvidia/cu13"
    wheel(
        site, "nvidia-cublas", f"{nvidia}/lib/libcublas.so.13", f"{nvidia}/lib/libnvblas.so.13", f"{nvidia}/include/a.h"
    )
    wheel(site, "nvidia-ml-py", "pynvml.py")
    engine = ("llama_cpp/lib/libllama.so", "llama_cpp/lib/libggml-cpu-sapphirerapids.so", "llama_cpp/__init__.py")
    wheel(site, "llama_cpp_python", *engine)
    wheel(site, "pip", "pip/__init__.py", "../../../bin/pip")
    (site / "forgelm.pth").write_text("/opt/forgelm\n")
    (clone / ".venv" / "pyvenv.cfg").write_text("")
    for name in ("forgelm", "python3"):
        (clone / ".venv" / "bin" / name).write_text("")
    (clone / ".venv" / "bin" / "python").symlink_to("python3")
    (clone / ".venv" / "lib64").symlink_to("lib")
    return clone


def laid_out(clone: Path, out: Path) -> dict[str, set[str]]:
    """Layer → its files, below site-packages where they are."""
    subprocess.run([sys.executable, str(ROOT / "containers" / "layers.py"), str(clone), str(out)], check=True)
    site = ".venv/lib/python3.11/site-packages/"
    return {
        layer.name: {
            str(path.relative_to(layer / clone.relative_to("/"))).removeprefix(site)
            for path in layer.rglob("*")
            if not path.is_dir() or path.is_symlink()
        }
        for layer in out.iterdir()
    }


def test_each_package_is_in_its_layer_with_what_a_server_needs(clone: Path, tmp_path: Path) -> None:
    layers = laid_out(clone, tmp_path / "out")
    told = {name: {file for file in files if ".dist-info" not in file} for name, files in layers.items()}
    assert told["cuda"] == {"nvidia/cu13/lib/libcublas.so.13"}
    assert told["engine"] == {
        "llama_cpp/lib/libllama.so", "llama_cpp/__init__.py", "llama_cpp/__pycache__/__init__.cpython-311.pyc",
    }  # fmt: skip
    skeleton = {".venv/pyvenv.cfg", ".venv/bin/python", ".venv/bin/python3", ".venv/bin/forgelm", ".venv/lib64"}
    assert told["packages"] == {"forgelm.pth", "pynvml.py", "__pycache__/pynvml.cpython-311.pyc", *skeleton}
    assert "nvidia_ml_py-1.dist-info/METADATA" in layers["packages"]


def test_bytecode_holds_neither_times_nor_paths_of_the_build(clone: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        laid_out(clone, tmp_path / name)
    one, two = (next((tmp_path / name).rglob("pynvml*.pyc")).read_bytes() for name in ("one", "two"))
    assert one == two
    assert int.from_bytes(one[4:8], "little") == 0b01, "by hash, and unchecked"
    assert marshal.loads(one[16:]).co_filename == f"{clone}/.venv/lib/python3.11/site-packages/pynvml.py"
