"""What the sidecar tells whoever started it: when it begins to work on files, and when it has ended."""

import os
from collections.abc import Iterator

import pytest

from forgelm.ipc.registry import RESTS, WORKS
from forgelm.registry.working import tell, working


@pytest.fixture
def parent() -> Iterator[int]:
    """The end at which it is read."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    tell(theirs)
    yield ours
    tell(None)
    for descriptor in (ours, theirs):
        os.close(descriptor)


def test_the_first_begins_and_the_last_ends(parent: int) -> None:
    with working():
        assert os.read(parent, 9) == WORKS
        with working(), pytest.raises(BlockingIOError):
            os.read(parent, 9)
        with pytest.raises(BlockingIOError):
            os.read(parent, 9)
    assert os.read(parent, 9) == RESTS


def test_what_fails_has_ended_too(parent: int) -> None:
    with pytest.raises(KeyError), working():
        raise KeyError
    assert os.read(parent, 9) == WORKS + RESTS


def test_a_parent_that_is_gone_is_nobodys_concern() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    tell(theirs)
    with working():
        pass
    tell(None)
    os.close(theirs)
