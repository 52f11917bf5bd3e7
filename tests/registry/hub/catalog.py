"""What the local hub holds: repositories, their files on disk, and who may read them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

LFS_ENDINGS = (".gguf", ".bin", ".safetensors", ".zip")
POINTER_BYTES = 134
BLOCK = 4 << 20


@dataclass(frozen=True)
class Content:
    """One file's bytes, and what the hub says of them."""

    path: Path
    size: int
    sha256: str
    oid: str
    """Git's name for it: of the pointer, where it is in LFS."""
    lfs: bool

    @property
    def etag(self) -> str:
        """As a CDN gives it: strong, and not the sha256."""
        return f'"{self.sha256[:32]}-7"' if self.lfs else f'"{self.oid}"'


@dataclass
class Model:
    """One repository."""

    id: str
    files: dict[str, Content]
    commit: str
    license: str = "apache-2.0"
    license_name: str = ""
    license_link: str = ""
    gated: str = ""
    """"auto" or "manual"; "" for one that is open."""
    allowed: set[str] = field(default_factory=set)
    """Tokens whose accounts were let into a gated or private repository."""
    private: bool = False
    disabled: bool = False
    downloads: int = 0
    likes: int = 0
    trending: int = 0
    modified: str = "2026-01-02T03:04:05.000Z"
    tags: tuple[str, ...] = ("gguf",)
    revisions: dict[str, dict[str, Content]] = field(default_factory=dict)
    """Commit → its files; branches and tags → those of the commit they point to are found by `commit_of`."""
    branches: dict[str, str] = field(default_factory=dict)

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, a tag or a commit's own name means."""
        commit = self.branches.get(revision, revision)
        return commit if commit in self.revisions else None

    def move(self, files: dict[str, Content]) -> None:
        """Make a commit with these files on `main`."""
        text = json.dumps([self.id, len(self.revisions), {name: each.oid for name, each in files.items()}])
        self.commit = hashlib.sha1(text.encode()).hexdigest()
        self.files = files
        self.revisions[self.commit] = files
        self.branches["main"] = self.commit


class Catalog:
    """All repositories of a hub, their contents under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[str, Model] = {}
        self.contents: dict[str, Content] = {}
        """By sha256: what the CDN has."""

    def add(self, id: str, files: Mapping[str, bytes | Path], **facts: Any) -> Model:
        """A repository with these files; `facts` are further fields of `Model`."""
        model = Model(id, {}, "", **facts)
        model.move({name: self.keep(name, content) for name, content in files.items()})
        self.models[id] = model
        return model

    def change(self, id: str, name: str, content: bytes | Path) -> Content:
        """A commit that replaces one file."""
        model = self.models[id]
        kept = self.keep(name, content)
        model.move({**model.files, name: kept})
        return kept

    def keep(self, name: str, content: bytes | Path) -> Content:
        """Put a file's bytes where the CDN finds them; a `Path` stays where it is."""
        path = content if isinstance(content, Path) else self._written(content)
        found = path.stat()
        sha256 = _sha256(path, found.st_mtime_ns)
        lfs = name.endswith(LFS_ENDINGS)
        stored = f"oid sha256:{sha256}".encode() if lfs else path.read_bytes()
        oid = hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()
        kept = Content(path, found.st_size, sha256, oid, lfs)
        self.contents[kept.sha256] = kept
        return kept

    def _written(self, content: bytes) -> Path:
        path = self.folder / hashlib.sha256(content).hexdigest()
        path.write_bytes(content)
        return path


@cache
def _sha256(path: Path, mtime_ns: int) -> str:
    """Of a file that may be on many hubs, one after the other."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
