"""Fixtures for the registry: folders of its own, and a hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.registry.fetching import Fetching, place
from tests.registry.hub import LocalHub
from tests.registry.shelf import Shelf


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be logged in at the real hub. The library looked for the file when it was imported."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Empty folders, which this process uses."""
    return Shelf(tmp_path / "shelf").settle(monkeypatch)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHub]:
    """An empty hub on this machine."""
    folder = tmp_path / "hub"
    folder.mkdir()
    with LocalHub(folder) as hub:
        yield hub


@pytest.fixture
def small(local: LocalHub, tmp_path: Path) -> Fetching:
    """A file that comes over one connection."""
    from tests.registry.contents import SMALL

    return place(local, tmp_path / "models", SMALL)


@pytest.fixture(scope="package")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Here, as most tests have no use for so much of the memory.
    from tests.registry.contents import LARGE

    path = tmp_path_factory.mktemp("content") / "large"
    path.write_bytes(LARGE)
    return path


@pytest.fixture
def large(local: LocalHub, tmp_path: Path, large_file: Path) -> Fetching:
    """One that is worth several connections."""
    return place(local, tmp_path / "models", large_file)
