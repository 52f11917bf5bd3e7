"""Fixtures of the engine's tests."""

from collections.abc import Iterator

import pytest

from tests.engine.peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()
