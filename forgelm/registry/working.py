"""Whether this process works on files, told to whoever started it: an engine beside it leaves it a core meanwhile."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from forgelm.ipc.registry import RESTS, WORKS

_lock = threading.Lock()
_count = 0
_parent: int | None = None


def tell(parent: int | None) -> None:
    """Write to the descriptor `parent` from now on."""
    global _parent
    _parent = parent


@contextmanager
def working() -> Iterator[None]:
    """For as long as the block."""
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    global _count
    with _lock:
        before, _count = _count, _count + by
        if _parent is not None and bool(before) != bool(_count):
            # Whoever started us is gone, and we shall hear of it.
            with suppress(OSError):
                os.write(_parent, WORKS if _count else RESTS)
