"""Whether a model's file is there and this user may read it: in containers files often are somebody else's.

`Path.is_file` says False for a file that isn't there and raises `PermissionError` below a folder that is closed; a file
that is there and can't be read would be found out by llama.cpp, which doesn't say for whom.
"""

import os
import stat
from pathlib import Path

from forgelm.errors import ModelError


def is_here(path: Path) -> bool:
    """Whether there is a file at `path`. Raises `ModelError` with the remedy where this user may not read it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        raise ModelError(_refused(path)) from None
    except (OSError, ValueError):
        return False
    return True


def _refused(path: Path) -> str:
    """Which file or folder is closed, to whom, and what opens it."""
    user = os.geteuid()
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK, effective_ids=True):
            return f"{path} can't be read by uid {user}: open the folder {folder} to that user (chmod o+rx FOLDER)"
    return f"{path} can't be read by uid {user}: let that user read it (chmod o+r FILE)"
