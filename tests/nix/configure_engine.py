"""The engine's derivation, built by Nix as far as CMake's configuration: `make nix-configure`.

Not part of `make test`: it needs the sdist (77 MB), a compiler and CMake. Nix itself compares the sdist's hash with the
pin, then this machine's CMake runs with the flake's own flags, in the environment that nixpkgs gives every build.
"""

import re
from pathlib import Path

import pytest

from tests.nix.flake import Flake

X86_64_V3 = {"-mavx2", "-mfma", "-mf16c", "-mbmi2"}


@pytest.fixture(scope="session")
def configured(flake: Flake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    link = tmp_path_factory.mktemp("out") / "result"
    done = flake.nix("build", "#llama-cpp", "--out-link", str(link))
    assert done.returncode == 0, done.stderr
    return link


def test_processors_with_avx2_get_it_although_source_date_epoch_is_set(configured: Path):
    log = (configured / "configure.log").read_text()
    assert "Setting GGML_NATIVE_DEFAULT to OFF" in log  # upstream saw SOURCE_DATE_EPOCH
    variants = dict(re.findall(r"Adding CPU backend variant ggml-cpu-(\w+): (\S*)", log))
    print("\n".join(f"{name}: {flags}" for name, flags in variants.items()))
    assert set(variants["haswell"].split(";")) >= X86_64_V3
    assert "-mavx512f" in variants["skylakex"]
    assert variants["x64"] == ""


def test_every_flag_is_one_that_upstream_knows(configured: Path):
    assert "CMake Warning" not in (configured / "configure.log").read_text()


def test_modules_lie_beside_libllama(configured: Path):
    modules = (configured / "modules.txt").read_text().splitlines()
    assert len(modules) >= 10
    assert all('DESTINATION "${CMAKE_INSTALL_PREFIX}/lib"' in line for line in modules)
    # Deleted after the installation, by this name.
    assert any("libggml-cpu-sapphirerapids.so" in line for line in modules)


def test_another_sdist_is_refused_by_nix(flake: Flake, tmp_path: Path, nix_work: Path, monkeypatch: pytest.MonkeyPatch):
    name = flake.package("llama-cpp", "p: p.src.name")
    (tmp_path / name).write_bytes(b"not the sdist")
    monkeypatch.setenv("FORGELM_SDIST_DIR", str(tmp_path))
    fresh = nix_work / "fresh"
    done = Flake(flake.tree, fresh).nix("build", "#llama-cpp.src", "--out-link", str(tmp_path / "result"))
    assert done.returncode != 0
    assert "hash mismatch" in done.stderr
