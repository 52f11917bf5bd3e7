"""Fixtures for the registry: folders of its own, and a hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

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
