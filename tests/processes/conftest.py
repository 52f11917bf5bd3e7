"""One server with the real starter model, for all tests that only ask it things."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.serving import Served, serve


@pytest.fixture(scope="session")
def real(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`forgelm serve` with the starter model."""
    with serve(tmp_path_factory.mktemp("real")) as server:
        yield server.ready()
