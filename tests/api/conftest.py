"""One shared server for the tests that need nothing special; the others start their own with `live.running`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.live import Live, running


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
