"""One process at a time fetches a file; the others wait. The system lets go of a dead process's lock."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2


@contextmanager
def held(path: Path, wait: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock at `path`; while somebody else does, call `wait` with the seconds until the next try.

    Two threads of one process keep each other out too. Raises `OSError`, and what `wait` raises.
    """
    while (handle := _taken(path)) is None:
        wait(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(handle)


def _taken(path: Path) -> int | None:
    """The lock's handle; None while somebody else has it."""
    # Opened for writing, as NFS demands for an exclusive lock.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever deletes a model deletes its lock: one on a file without a name would keep nobody out.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None
