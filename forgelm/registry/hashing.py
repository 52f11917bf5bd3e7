"""A model's bytes against the sha256 they should have: one file at a time in this process, on one core."""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from forgelm.registry.progress import Cancelled, Progress, Watch

BLOCK = 1 << 20
_one_at_a_time = threading.Lock()


def hash_files(paths: Sequence[Path], total: int, progress: Watch, cancel: threading.Event) -> list[str]:
    """The sha256 of each file, in hex. Raises `Cancelled`, and `OSError` for one that can't be read."""
    progress(Progress(0, total, "waiting"))
    with _one_at_a_time:
        found, done = list[str](), 0
        for path in paths:
            digest = hashlib.sha256()
            with path.open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    if cancel.is_set():
                        raise Cancelled(f"{path.name} isn't read any further")
                    digest.update(block)
                    done += len(block)
                    progress(Progress(done, total, "verifying"))
            found.append(digest.hexdigest())
        return found
