"""Locks that processes keep each other out with. The system lets go of a dead process's lock.

Two threads of one process keep each other out too: each opens the file anew.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.2


@contextmanager
def held(path: Path, wait: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock at `path`; while somebody else does, call `wait` with the seconds until the next try.

    Raises `OSError`, and what `wait` raises.
    """
    while (handle := take(path)) is None:
        wait(POLL_SECONDS)
    with handle:
        yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, which nobody deletes, and wait as long as it takes. Raises `OSError`."""
    with path.open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def take(path: Path) -> IO[bytes] | None:
    """The lock at `path`, until it is closed; None while somebody else has it. Raises `OSError`."""
    # Opened for writing, as NFS demands for an exclusive lock.
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever deletes a model deletes its lock: one on a file without a name would keep nobody out.
        if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        handle.close()
        raise
    handle.close()
    return None
