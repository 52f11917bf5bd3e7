"""What lies in the models' folder: the files of each model, where they came from, and the heads beside them.

It reads names, sizes and the hub's notes (`.FILE.origin.json`), never the models; it writes nothing, so that the folder
may be read-only or somebody else's. Hidden files, unfinished downloads among them, are no models.
"""

import os
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath

import msgspec

from forgelm import log
from forgelm.ipc import registry as wire
from forgelm.registry.index import Stamp
from forgelm.registry.names import candidates, split_of
from forgelm.registry.partial import Origin, read_origin

HEAD_PREFIX = "mtp-"


class Lying(msgspec.Struct, frozen=True):
    """The files of one model, in the models' folder or elsewhere, and what is known of them without reading them."""

    parts: tuple[Stamp, ...]
    quant: str
    """As the names tell."""
    relative: str = ""
    """Path of the first part below the models' folder; "" for an imported model."""
    heads: tuple[Stamp, ...] = ()
    """`mtp-*.gguf` files beside it, the best-named first."""
    origin: wire.Origin = "local"
    repo: str = ""
    revision: str = ""
    license: str = ""
    sha256: tuple[str, ...] = ()
    """Of each part, as whoever it came from says; "" where nobody does. Empty for none at all."""
    wanted_id: str = ""
    """What an import calls it."""
    profile: str = ""
    """The profile that an import wrote for it."""
    apart: tuple[str, ...] = ()
    """Profiles that an import wrote for other names of the same file."""
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def path(self) -> str:
        """Of the first part."""
        return self.parts[0].path

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def stamp(self) -> Stamp:
        """All parts as one file: it changes when one of them does."""
        return Stamp(self.path, self.bytes, max(part.mtime_ns for part in self.parts))

    @property
    def stem(self) -> str:
        """The file's name without its ending, and without the part's number."""
        return stem_of(PurePosixPath(self.path).name)


def stem_of(name: str) -> str:
    """A model's name as its file's tells it."""
    split = split_of(name)
    return split[0] if split else name.removesuffix(".gguf").removesuffix(".GGUF")


def stamp_of(path: Path) -> Stamp | None:
    """The file at `path` as it is now; None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return Stamp(str(path), found.st_size, found.st_mtime_ns) if path.is_file() else None


def scan(models: Path) -> list[Lying]:
    """Every model in the folder, by path. A folder that isn't there has none."""
    stamps = {PurePosixPath(stamp.path).relative_to(models).as_posix(): stamp for stamp in _files(models, set())}
    found, companions = candidates((name, stamp.size) for name, stamp in stamps.items())
    heads = [name for name in companions if PurePosixPath(name).name.lower().startswith(HEAD_PREFIX)]
    return [_lying(stamps, candidate.parts, candidate.quant, heads) for candidate in found]


def heads_beside(path: Path) -> tuple[Stamp, ...]:
    """The `mtp-*.gguf` files in the folder of an imported model, the best-named first."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ()
    heads = [name for name in names if name.lower().startswith(HEAD_PREFIX) and name.lower().endswith(".gguf")]
    found = (stamp_of(path.with_name(name)) for name in sorted(heads, key=lambda name: distance(path.name, name)))
    return tuple(stamp for stamp in found if stamp is not None)


def distance(model: str, head: str) -> tuple[float, str]:
    """How far apart two files' names are, and the head's, so that the order doesn't depend on the folder's."""
    names = stem_of(model).lower(), stem_of(head).lower().removeprefix(HEAD_PREFIX)
    return -SequenceMatcher(None, *names, autojunk=False).ratio(), head


def _lying(stamps: Mapping[str, Stamp], names: tuple[str, ...], quant: str, heads: list[str]) -> Lying:
    first = PurePosixPath(names[0])
    beside = sorted((PurePosixPath(head) for head in heads), key=lambda head: distance(first.name, head.name))
    origins = [_origin(stamps[name]) for name in names]
    lying = Lying(
        parts=tuple(stamps[name] for name in names),
        quant=quant,
        relative=str(first),
        heads=tuple(stamps[str(head)] for head in beside if head.parent == first.parent),
    )
    origin = origins[0]
    if origin is None:
        return lying
    return msgspec.structs.replace(
        lying,
        origin="hub",
        repo=origin.repo,
        revision=origin.revision,
        license=origin.license,
        sha256=tuple(each.sha256 if each else "" for each in origins),
    )


def _origin(stamp: Stamp) -> Origin | None:
    """Where a file came from; None as well when it was replaced since by somebody who left the note."""
    origin = read_origin(Path(stamp.path))
    return origin if origin is not None and origin.size == stamp.size else None


def _files(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Stamp]:
    """All files below `folder` that aren't hidden. Links are followed, each folder is entered once."""
    try:
        found = folder.stat()
        if (found.st_dev, found.st_ino) in seen:
            return
        seen.add((found.st_dev, found.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        log.get("registry").warning("a folder can't be read", path=str(folder), reason=error.strerror)
        return
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(".") or not _is_text(entry.name):
            continue
        if path.is_dir():
            yield from _files(path, seen)
        elif (stamp := stamp_of(path)) is not None:
            yield stamp


def _is_text(name: str) -> bool:
    """Whether a name can be written in JSON: Linux takes bytes that are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
