"""Mistakes in the flake that evaluation against the stand-in must catch: otherwise a green run would say nothing."""

from pathlib import Path

import pytest

from tests.nix.flake import Flake, changed

NIX = "containers/nix"
MISTAKES = {
    "syntax": (
        "flake.nix",
        "let\n",
        "let let\n",
        "syntax error",
    ),
    "undefined variable": (
        f"{NIX}/llama-cpp.nix",
        "architectures = lib.",
        "architectures = lob.",
        "undefined variable",
    ),
    "unfree refused": (
        f"{NIX}/unfree.nix",
        '"CUDA EULA"',
        '"another EULA"',
        "unfree package cuda_cudart refused",
    ),
    "toolkit of a nixpkgs without CUDA": (
        "flake.nix",
        "cudaSupport = true;",
        "",
        "CUDA without config.cudaSupport is unsupported",
    ),
    "toolkit out of the wrong package set": (
        f"{NIX}/default.nix",
        "cudaPkgs.${exact} or cudaPkgs.${major}",
        "pkgs.${exact} or pkgs.${major}",
        "CUDA without config.cudaSupport is unsupported",
    ),
    "misspelt config of nixpkgs": (
        "flake.nix",
        "cudaCapabilities =",
        "cudaCapabilites =",
        "no config cudaCapabilites",
    ),
    "unknown argument of the image": (
        f"{NIX}/image.nix",
        "maxLayers =",
        "maxLayer =",
        "unexpected argument 'maxLayer'",
    ),
    "unknown argument of a Python package": (
        f"{NIX}/bindings.nix",
        "pyproject = true;",
        "pyprojekt = true;",
        "unexpected argument 'pyprojekt'",
    ),
    "package that nixpkgs lacks": (
        f"{NIX}/shell.nix",
        "skopeo",
        "skopea",
        "nothing provides skopea",
    ),
    "forgotten argument": (
        f"{NIX}/registry.nix",
        "writeShellApplication, forgelm",
        "writeShellApplication",
        "undefined variable 'forgelm'",
    ),
    "text for a CMake bool": (
        f"{NIX}/llama-cpp.nix",
        '"GGML_NATIVE" false',
        '"GGML_NATIVE" "OFF"',
        "assertion",
    ),
    "checks that aren't derivations": (
        f"{NIX}/default.nix",
        "import ./checks.nix {",
        "call ./checks.nix {",
        "is not a derivation",
    ),
    "Python that has no wheels here": (
        "containers/pins.json",
        '"version": "3.13"',
        '"version": "3.99"',
        "python399",
    ),
    "toolkit that nixpkgs lacks": (
        "containers/pins.json",
        '"toolkit": "13.0"',
        '"toolkit": "99.0"',
        "neither cudaPackages_99_0",
    ),
    "wheel that isn't locked": (
        "containers/pins.json",
        '"wheels": {\n      "anyio"',
        '"wheels": {\n      "anyjo"',
        "nixpkgs has no Python package anyio",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_caught(flake: Flake, nix_work: Path, tmp_path: Path, mistake: str):
    file, old, new, said = MISTAKES[mistake]
    assert said in Flake(changed(flake.tree, tmp_path, file, old, new), nix_work).check()
