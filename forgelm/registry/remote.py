"""What the hub says of a repository and its files."""

import msgspec

from forgelm.errors import NotFound


class RemoteFile(msgspec.Struct, frozen=True):
    """A file in a repository."""

    path: str
    size: int
    sha256: str = ""
    """"" where the hub doesn't keep it in LFS."""


class Repo(msgspec.Struct, frozen=True):
    """A repository at one commit."""

    id: str
    """As the hub spells it, which for a repository that was renamed is another name than the one asked for."""
    commit: str
    license: str = ""
    license_link: str = ""
    gated: bool = False
    downloads: int = 0
    likes: int = 0
    modified: float = 0.0
    """Seconds since the epoch."""
    files: tuple[RemoteFile, ...] = ()

    def file(self, path: str) -> RemoteFile:
        """The file at `path`. Raises `NotFound`."""
        for file in self.files:
            if file.path == path:
                return file
        raise NotFound(f"{self.id} has no file {path} at {self.commit[:12]}.", param="file")


class Location(msgspec.Struct, frozen=True):
    """Where the bytes of a file are for now."""

    url: str
    etag: str
    """What the hub says of the content, without quotes: the sha256 of a file in LFS."""
    size: int | None


def may_be(one: str, other: str) -> bool:
    """Whether two hashes don't differ; "" is one that nobody told."""
    return not one or not other or one == other
