"""Fixtures for the commands: folders of their own, and a hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.registry.files import write_tiny
from tests.registry.hub import LocalHub
from tests.registry.shelf import Shelf


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Empty folders, and an empty hub."""
    folder = tmp_path / "hub"
    folder.mkdir()
    with LocalHub(folder) as hub:
        yield Desk(Shelf(tmp_path / "shelf"), hub)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A file that looks like a model, of some kilobytes."""
    return write_tiny(tmp_path / "tiny.gguf")
