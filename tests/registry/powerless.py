"""Being somebody who may not do everything: tests may run as root, whom no permission stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """`folder` and all below it may be read and no more, by whoever this process is."""
    paths = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    modes = {path: path.stat().st_mode for path in paths}
    above = {path: path.stat().st_mode for path in folder.parents if path.stat().st_uid == os.geteuid()}
    root = os.geteuid() == 0
    try:
        for path in above:
            path.chmod(path.stat().st_mode | 0o055)
        for path in paths:
            path.chmod(0o555)
        if root:
            os.seteuid(NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, mode in {**modes, **above}.items():
            path.chmod(mode)
