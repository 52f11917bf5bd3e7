"""Files that other programs fetched into the Hugging Face cache, so that nothing is fetched twice.

`models--OWNER--NAME/snapshots/COMMIT/FILE` links to `blobs/ETAG`, and the etag of a large file is its sha256.
"""

import os
from pathlib import Path

from forgelm.registry.places import sha256_of
from forgelm.registry.remote import RemoteFile, Repo, may_be


def roots() -> tuple[Path, ...]:
    """The caches that llama.cpp and the hub's clients use, as their variables say; those that exist."""
    environment = os.environ
    named = [environment.get(name, "") for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")]
    homes = [environment.get("HF_HOME", ""), _below(environment.get("XDG_CACHE_HOME", ""), "huggingface")]
    homes.append(str(Path.home() / ".cache" / "huggingface"))
    found = [*named, *(_below(home, "hub") for home in homes)]
    return tuple(dict.fromkeys(Path(path).expanduser() for path in found if path and Path(path).expanduser().is_dir()))


def cached(repo: str, commit: str, file: RemoteFile) -> Path | None:
    """The file in a cache, if it is there whole: of the right size, and the right sha256 where the cache tells.

    One of another commit will do where both sha256 are known: most commits leave the large files as they are.
    """
    for root in roots():
        snapshots = _folder(root, repo) / "snapshots"
        try:
            same = snapshots / commit / file.path
            if same.is_file() and same.stat().st_size == file.size and may_be(sha256_of(same), file.sha256):
                return same
            for other in sorted(snapshots.iterdir()) if file.sha256 else ():
                path = other / file.path
                if sha256_of(path) == file.sha256 and path.is_file() and path.stat().st_size == file.size:
                    return path
        except OSError:
            continue
    return None


def cached_repo(repo: str, revision: str) -> Repo | None:
    """A repository as a cache has it, at the commit that `revision` was when it was last fetched."""
    for root in roots():
        folder = _folder(root, repo)
        commit = _commit(folder, revision)
        snapshot = folder / "snapshots" / commit
        if not commit or not snapshot.is_dir():
            continue
        files = tuple(
            RemoteFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, sha256_of(path))
            for path in sorted(snapshot.rglob("*"))
            if path.is_file()
        )
        return Repo(id=repo, commit=commit, files=files)
    return None


def _commit(folder: Path, revision: str) -> str:
    if ".." in revision.split("/") or revision.startswith("/"):
        return ""
    try:
        return (folder / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError, ValueError):
        return revision if (folder / "snapshots" / revision).is_dir() else ""


def _folder(root: Path, repo: str) -> Path:
    return root / f"models--{repo.replace('/', '--')}"


def _below(folder: str, name: str) -> str:
    return str(Path(folder) / name) if folder else ""
