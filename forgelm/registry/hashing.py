"""A model's bytes against the sha256 they should have: all hashing of this process takes one core at most."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from forgelm.registry.progress import Cancelled, Progress, Watch

BLOCK = 1 << 20
POLL_SECONDS = 0.2
_one_file = threading.Lock()
_one_core = threading.Lock()


def update(digest: "hashlib._Hash", data: memoryview | bytes) -> None:
    """Hash `data`, after what other threads hash now: downloads and checks together take one core."""
    with _one_core:
        digest.update(data)


def hash_files(paths: Sequence[Path], total: int, progress: Watch, cancel: threading.Event) -> list[str]:
    """The sha256 of each file, in hex; one call at a time. Raises `Cancelled`, and `OSError` of files."""
    progress(Progress(0, total, "waiting"))
    with _turn(cancel):
        found, done = list[str](), 0
        for path in paths:
            digest = hashlib.sha256()
            with path.open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    if cancel.is_set():
                        raise Cancelled(f"{path.name} isn't read any further")
                    update(digest, block)
                    done += len(block)
                    progress(Progress(done, total, "verifying"))
            found.append(digest.hexdigest())
        return found


@contextmanager
def _turn(cancel: threading.Event) -> Iterator[None]:
    """Be the only one who reads whole files: two would only make the disk seek."""
    while not _one_file.acquire(timeout=POLL_SECONDS):
        if cancel.is_set():
            raise Cancelled("what was to be hashed isn't wanted any more")
    try:
        yield
    finally:
        _one_file.release()
