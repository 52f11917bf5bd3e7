"""Models that are listed from where they lie, outside the models' folder: which they are, kept in `imports.json`.

One that isn't there at the moment, on a disk that isn't mounted, stays in the file and is left out of the list.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from forgelm.registry.disk import Lying, heads_beside, stamp_of
from forgelm.registry.names import quant_of
from forgelm.registry.statefile import StateFile


class Record(msgspec.Struct, frozen=True):
    """One imported model."""

    parts: tuple[str, ...]
    """Paths of its files, in order."""
    id: str = ""
    """What it shall be called; "" is its file's name."""
    repo: str = ""
    revision: str = ""
    sha256: str = ""
    """Of a model in one file, where it is known."""
    license: str = ""
    profile: str = ""
    """Name of the profile that was written for it."""
    aliases: tuple[str, ...] = ()
    note: str = ""
    """What its folder tells of it."""

    @property
    def path(self) -> str:
        return self.parts[0]


class Imports:
    """The imports in one state directory."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(state / "imports.json", dict[str, Record], {})

    def lying(self) -> tuple[list[Lying], list[str]]:
        """Those that are there, and the paths of those that aren't."""
        found, missing = list[Lying](), list[str]()
        for path, record in self._file.read().items():
            stamps = [stamp_of(Path(part)) for part in record.parts]
            present = tuple(stamp for stamp in stamps if stamp is not None)
            if len(present) < len(stamps) or not present:
                missing.append(path)
                continue
            found.append(
                Lying(
                    parts=present,
                    quant=quant_of(record.path),
                    heads=heads_beside(Path(record.path)),
                    origin="import",
                    repo=record.repo,
                    revision=record.revision,
                    license=record.license,
                    sha256=(record.sha256,) if record.sha256 and len(present) == 1 else (),
                    wanted_id=record.id,
                    profile=record.profile,
                    aliases=record.aliases,
                    note=record.note,
                )
            )
        return found, missing

    def add(self, records: Iterable[Record]) -> None:
        """List more models; one that is listed already is as it is told now. Raises `OSError`."""
        more = {record.path: record for record in records}
        if more:
            self._file.change(lambda kept: {**kept, **more})

    def forget(self, path: str) -> None:
        """List the model at `path` no longer. Raises `OSError`."""
        self._file.change(lambda kept: {each: record for each, record in kept.items() if each != path})

    def named(self, name: str) -> str:
        """The path of an import that isn't there any more, by path or by id; "" when there is none."""
        records = self._file.read()
        return next((path for path, each in records.items() if name in (path, each.id)), "")
