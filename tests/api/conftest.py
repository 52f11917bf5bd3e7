"""One shared server for the tests that need nothing special; the others start their own with `live.running`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.live import Live, running
from tests.api.side import Side


@pytest.fixture(scope="session")
def shared(starter_path: Path) -> Iterator[Live]:
    """A server that answers fast, with every limit at its default."""
    with running(starter_path) as server:
        yield server


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    """The shared server; whatever the test did, it must be idle and answering afterwards."""
    yield shared
    shared.idle()
    shared.lives()


@pytest.fixture(scope="session")
def qwen(qwen35_vocab_path: Path) -> Iterator[Side]:
    """Qwen3.5's vocabulary and template: it thinks, and its marks are special tokens."""
    side = Side(qwen35_vocab_path)
    yield side
    side.vocabulary.close()


@pytest.fixture(scope="session")
def smollm(starter_path: Path) -> Iterator[Side]:
    """The starter's: it knows neither thinking nor tools."""
    side = Side(starter_path)
    yield side
    side.vocabulary.close()
