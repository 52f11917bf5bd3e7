"""Nix, and a clean copy of the flake for all tests of a run."""

import shutil
from pathlib import Path

import pytest

from tests.nix.flake import Flake, export


@pytest.fixture(scope="session")
def nix_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Nix keeps its store; shared, since what was evaluated once needn't be copied again."""
    if not shutil.which("nix"):
        pytest.fail("nix is missing: sudo apt install nix-bin")
    return tmp_path_factory.mktemp("nix")


@pytest.fixture(scope="session")
def flake(nix_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Flake:
    """The flake of this tree; tests don't change it."""
    return Flake(export(tmp_path_factory.mktemp("clone")), nix_work)
