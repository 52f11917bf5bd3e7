"""Which repository a file is from, as the folders it lies in tell: the Hugging Face cache's, and LM Studio's."""

import re
from pathlib import Path
from typing import NamedTuple

from forgelm.registry.references import is_repository

_CACHED = re.compile(r"models--([^/]+?)--([^/]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LM_STUDIO = (".lmstudio", "lm-studio", "lmstudio", "LM Studio")
"""Names of folders that LM Studio keeps its own `models` in."""


class Place(NamedTuple):
    """Where a file is from."""

    repo: str = ""
    revision: str = ""
    """The commit, where the folder tells."""
    file: str = ""
    """Its path in the repository."""


def read_place(path: Path, root: Path) -> Place:
    """What the folders of `path` tell, which was found below `root`."""
    return _in_cache(path) or _in_lm_studio(path, root) or Place()


def sha256_of(path: Path) -> str:
    """The sha256 of a file in the Hugging Face cache: a blob of a large file is called so. "" for others."""
    blob = path.readlink().name if path.is_symlink() else ""
    return blob if _SHA256.fullmatch(blob) else ""


def snapshots(folder: Path) -> list[Path]:
    """The commits of a repository in the Hugging Face cache: `main` as it was last seen first, then the newest."""
    if not _CACHED.fullmatch(folder.name) or not (folder / "snapshots").is_dir():
        return []
    try:
        main = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != main, -path.stat().st_mtime, path.name))


def _in_cache(path: Path) -> Place | None:
    """`models--OWNER--NAME/snapshots/COMMIT/FILE`."""
    for commit in path.parents:
        cached = _CACHED.fullmatch(commit.parent.parent.name)
        if commit.parent.name == "snapshots" and cached:
            repo = f"{cached[1]}/{cached[2]}"
            return Place(repo, commit.name, path.relative_to(commit).as_posix()) if is_repository(repo) else None
    return None


def _in_lm_studio(path: Path, root: Path) -> Place | None:
    """`PUBLISHER/REPOSITORY/FILE` below LM Studio's folder, or below any that holds repositories of GGUFs by name."""
    own = next((p for p in path.parents if p.name == "models" and p.parent.name in _LM_STUDIO), None)
    parts = path.relative_to(own or root).parts
    if len(parts) < 3:
        return None
    repo = f"{parts[0]}/{parts[1]}"
    if not is_repository(repo) or not (own or "gguf" in parts[1].lower()):
        return None
    return Place(repo, file="/".join(parts[2:]))
