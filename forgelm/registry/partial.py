"""The hidden files beside a model: the part that is here of one being fetched, how far it is, and where it came from.

For `FILE` in its folder: `.FILE.part` (the data, at their places), `.FILE.part.json` (`State`), `.FILE.lock` and, when
it is whole, `.FILE.origin.json` (`Origin`). A state is replaced whole by a rename, so that a reader or a killed writer
never sees half of one. After a power cut the state may be newer than the data, which the kernel writes when it likes:
then only what was synced counts, and the boot's id tells whether there was one. A state isn't synced itself, being
replaced many times a second; where a file system keeps neither the old nor the new one, the file starts over.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from forgelm.registry.ranges import Ranges, Span

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Origin(msgspec.Struct, frozen=True):
    """Where a model's file came from."""

    repo: str
    file: str
    """Path in the repository."""
    revision: str
    """The commit."""
    size: int
    sha256: str = ""
    """As verified; "" for a file that the hub keeps outside LFS, whose size alone was looked at."""
    license: str = ""


class State(msgspec.Struct, frozen=True):
    """How far a file is that is being fetched."""

    repo: str
    file: str
    revision: str
    size: int
    sha256: str = ""
    license: str = ""
    etag: str = ""
    """The strong ETag of whoever serves the bytes, for `If-Range`; "" where there is none."""
    done: tuple[Span, ...] = ()
    """What has been written."""
    synced: tuple[Span, ...] = ()
    """What of it is on the disk for certain."""
    boot: str = ""
    """The boot in which `done` was written."""

    @property
    def bytes(self) -> int:
        """How many of the file's are here."""
        return Ranges(self.done).total

    @property
    def origin(self) -> Origin:
        return Origin(self.repo, self.file, self.revision, self.size, self.sha256, self.license)


class Partial:
    """The files beside one model. Who changes them holds the lock; reading needs none."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.data = target.with_name(f".{target.name}.part")
        self.state = target.with_name(f".{target.name}.part.json")
        self.lock = target.with_name(f".{target.name}.lock")
        self.origin = target.with_name(f".{target.name}.origin.json")

    def load(self) -> State | None:
        """How far it is, with only what can be trusted; None where nothing of it is here or the state is broken."""
        try:
            state = msgspec.json.decode(self.state.read_bytes(), type=State)
            limit = min(self.data.stat().st_size, state.size)
            done, synced = Ranges(state.done).clipped(limit), Ranges(state.synced).clipped(limit)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
            return None
        boot = boot_id()
        if not boot or state.boot != boot:
            done = synced
        return msgspec.structs.replace(state, done=done.spans, synced=synced.spans, boot=boot)

    def save(self, state: State) -> None:
        """Remember `state`. Raises `OSError`."""
        _replace(self.state, msgspec.json.encode(state), durable=False)

    def discard(self) -> None:
        """Forget what is here of it. Raises `OSError`."""
        self.data.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def finish(self, origin: Origin) -> None:
        """Give the data, whole and synced, their name. Raises `OSError`."""
        # The origin first: with the data there and no origin, nobody would know what it is. The other way round the
        # part that is still there says that the origin isn't yet of what bears the name.
        _replace(self.origin, msgspec.json.format(msgspec.json.encode(origin)), durable=True)
        self.data.replace(self.target)
        self.state.unlink(missing_ok=True)
        sync_folder(self.target.parent)

    def is_whole(self, size: int, sha256: str) -> bool:
        """Whether the model is here, by its size and what was verified when it came. Raises `OSError`."""
        try:
            there = self.target.stat().st_size
        except FileNotFoundError:
            return False
        origin = read_origin(self.target)
        known = origin is not None and (origin.size, origin.sha256) == (size, sha256)
        return known and there == size and not self.data.exists()


def read_origin(target: Path) -> Origin | None:
    """Where the file at `target` came from; None where nobody noted it."""
    try:
        return msgspec.json.decode(Partial(target).origin.read_bytes(), type=Origin)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_origin(target: Path, origin: Origin) -> None:
    """Note where the file at `target` came from. Raises `OSError`."""
    _replace(Partial(target).origin, msgspec.json.format(msgspec.json.encode(origin)), durable=True)


def boot_id() -> str:
    """What tells this boot of the machine from all others; "" on systems that have no such thing."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` last through a power cut. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(path: Path, content: bytes, *, durable: bool) -> None:
    # One name for the new content, so that killed writers leave no heap of them: who writes holds the lock.
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
