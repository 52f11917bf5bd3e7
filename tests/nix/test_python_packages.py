"""The flake's Python packages: wheels as locked, nixpkgs' own where they are new enough, and nothing in between."""

import json
import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from containers.nix.requirements import unmet
from containers.pins import read_raw
from forgelm.bootstrap import parse_lock
from tests.nix.flake import ROOT, STUB, Flake, changed

LOCK = parse_lock((ROOT / "requirements.lock").read_text())
WHEELS: dict[str, dict[str, str]] = read_raw(ROOT)["python"]["wheels"]
VERSIONS = f"{STUB}/python.json"
PYTHON: str = read_raw(ROOT)["python"]["version"]


@pytest.fixture(scope="module")
def packages(flake: Flake) -> dict[str, Any]:
    source = "wheel = q.src.name or null; hash = q.src.outputHash or null;"
    pick = f"p: map (q: {{ inherit (q) pname version; {source} }}) p.packages"
    return {package["pname"]: package for package in flake.package("forgelm", pick)}


def test_every_locked_package_is_there(packages: dict[str, Any]):
    assert set(packages) == set(LOCK)


@pytest.mark.parametrize("name", WHEELS)
def test_wheel_is_the_locked_one(packages: dict[str, Any], name: str):
    """`make nix-wheels` renews the hashes after `make lock`; the version is read from the lock itself."""
    assert f"--hash=sha256:{WHEELS[name]['sha256']}" in LOCK[name]
    assert LOCK[name].startswith(f"{name}=={packages[name]['version']} ")
    file = f"{name.replace('-', '_')}-{packages[name]['version']}-{WHEELS[name]['tag']}.whl"
    assert (packages[name]["wheel"], packages[name]["hash"]) == (file, WHEELS[name]["sha256"])


@pytest.mark.parametrize("name", WHEELS)
def test_wheel_runs_on_the_flakes_python(name: str):
    python, abi, platform = WHEELS[name]["tag"].split("-")
    version = f"cp{PYTHON.replace('.', '')}"
    assert (python, abi) in (("py3", "none"), (version, version)) or abi == "abi3"
    assert platform == "any" or "x86_64" in platform


def test_what_depends_on_a_wheel_is_a_wheel():
    """nixpkgs' packages bring their own dependencies along, and an environment can't hold two of one."""
    for name in set(LOCK) - set(WHEELS) - {"llama-cpp-python"}:
        needs = [Requirement(text) for text in metadata.requires(name) or []]
        needed = {need.name.lower() for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
        assert not needed & set(WHEELS), name


def refusal(flake: Flake, tmp_path: Path, nix_work: Path, file: str, old: str, new: str) -> str:
    """What evaluating the program says when a file of the tree has this change."""
    tree = changed(flake.tree, tmp_path, file, old, new)
    done = Flake(tree, nix_work).nix("eval", "--raw", "#packages.x86_64-linux.forgelm.outPath")
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("structlog", "24.4.0", "structlog: nixpkgs has 24.4.0, ForgeLM needs >=25,<27"),
        ("numpy", "3.0.0", "numpy: nixpkgs has 3.0.0, ForgeLM needs >=2.1,<3"),
    ],
)
def test_a_version_that_will_not_do_is_named(
    flake: Flake, tmp_path: Path, nix_work: Path, name: str, version: str, said: str
):
    here = json.loads((ROOT / VERSIONS).read_text())[name]
    old, new = (f'"{name}": "{text}"' for text in (here, version))
    assert said in refusal(flake, tmp_path, nix_work, VERSIONS, old, new)


def test_a_package_that_nixpkgs_lacks_is_named(flake: Flake, tmp_path: Path, nix_work: Path):
    said = refusal(flake, tmp_path, nix_work, VERSIONS, '"uvloop"', '"another"')
    assert "nixpkgs has no Python package uvloop; name it in containers/pins.json, python.wheels" in said


def test_floors_are_pyprojects(flake: Flake, tmp_path: Path, nix_work: Path):
    said = refusal(flake, tmp_path, nix_work, "pyproject.toml", '"psutil>=6,<8"', '"psutil>=99,<100"')
    assert "psutil: nixpkgs has" in said
    assert "ForgeLM needs >=99,<100" in said


def test_requirements_are_met_here_and_a_gap_is_found(monkeypatch: pytest.MonkeyPatch):
    """The check that the flake builds, on the packages that these tests run with."""
    assert list(unmet(sorted(LOCK))) == []
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.0" if name == "click" else real(name))
    assert any(line.startswith("huggingface-hub needs click") for line in unmet(sorted(LOCK)))
    assert list(unmet(["no-such-package"])) == ["no-such-package is missing"]


def test_the_program_takes_its_licence_and_notices_along(flake: Flake, tmp_path: Path):
    command = flake.package("forgelm", "p: p.module.buildCommand")
    subprocess.run(["bash", "-euc", command], env={"PATH": os.environ["PATH"], "out": str(tmp_path)}, check=True)
    for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
        assert (tmp_path / "share/doc/forgelm" / name).read_bytes() == (ROOT / name).read_bytes()
    assert list(tmp_path.glob("**/forgelm/cli.py"))
