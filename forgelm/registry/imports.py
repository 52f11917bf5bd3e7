"""Models that are listed from where they lie, outside the models' folder: which they are, kept in `imports.json`.

One that isn't there at the moment, on a disk that isn't mounted, stays in the file and is left out of the list.
"""

from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

import msgspec

from forgelm import log
from forgelm.errors import ConfigError
from forgelm.registry.disk import Lying, heads_beside, stamp_of
from forgelm.registry.importing import FoundModel
from forgelm.registry.names import quant_of
from forgelm.registry.profiles import write_profile
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
    apart: tuple[str, ...] = ()
    """Profiles that were written for other names of the same file: they serve it, and aren't this model's."""
    aliases: tuple[str, ...] = ()
    note: str = ""
    """What its folder tells of it."""

    @property
    def path(self) -> str:
        return self.parts[0]


class Imports:
    """The imports in one state directory."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(state / "imports.json", dict[str, tuple[Record, ...]], {})

    def lying(self) -> tuple[list[Lying], list[str]]:
        """Those that are there, and the paths of those that aren't."""
        found, missing = list[Lying](), list[str]()
        for path, records in self._file.read().items():
            here = [each for each in map(_lying, records) if each is not None]
            found += here
            if not here:
                missing.append(path)
        return found, missing

    def add(self, records: Iterable[Record]) -> None:
        """List more models; a file that is listed already is as it is told now. Raises `OSError`."""
        more: dict[str, tuple[Record, ...]] = {}
        for record in records:
            more[record.path] = (*more.get(record.path, ()), record)
        if more:
            self._file.change(lambda kept: {**kept, **more})

    def forget(self, path: str, id: str = "") -> None:
        """List the file at `path` no longer, or only that one of its names. Raises `OSError`."""

        def without(kept: dict[str, tuple[Record, ...]]) -> dict[str, tuple[Record, ...]]:
            left = tuple(each for each in kept.get(path, ()) if id not in ("", each.id))
            return {each: left if each == path else records for each, records in kept.items() if each != path or left}

        self._file.change(without)

    def named(self, name: str) -> Record | None:
        """An import by path or by id, whether or not it is there."""
        records = chain.from_iterable(self._file.read().values())
        return next((each for each in records if name in (each.path, each.id)), None)


def records_of(models: Iterable[FoundModel]) -> list[Record]:
    """What to keep of models that were found; profiles are written of the settings that some have.

    Of those that are one file the ones without settings come first.
    """
    by_path: dict[Path, list[FoundModel]] = {}
    for model in models:
        by_path.setdefault(model.path, []).append(model)
    records = list[Record]()
    for same in by_path.values():
        profiles = list[str]()
        for model in same:
            profiles.append(_profile_for(model, profiles))
        recorded = [_record(model, profile, profiles) for model, profile in zip(same, profiles, strict=True)]
        records += sorted(recorded, key=lambda record: bool(record.profile))
    return records


def _record(model: FoundModel, profile: str, profiles: Iterable[str]) -> Record:
    return Record(
        parts=tuple(map(str, model.parts)),
        id=model.id,
        repo=model.repo,
        revision=model.revision,
        sha256=model.sha256,
        license=model.license,
        profile=profile,
        apart=tuple(other for other in profiles if other not in ("", profile)),
        aliases=model.aliases,
        note=model.judgement.note,
    )


def _profile_for(model: FoundModel, taken: Collection[str]) -> str:
    """The name of the profile made of a model's settings; "" where there are none, or it can't be written."""
    if not model.profile_toml:
        return ""
    try:
        return write_profile(model.profile_toml, model.path, taken)
    except (ConfigError, OSError) as error:
        log.get("registry").warning("no profile is written", model=model.id, reason=str(error))
        return ""


def _lying(record: Record) -> Lying | None:
    """None for one whose files aren't all there."""
    stamps = [stamp_of(Path(part)) for part in record.parts]
    present = tuple(stamp for stamp in stamps if stamp is not None)
    if len(present) < len(stamps) or not present:
        return None
    return Lying(
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
        apart=record.apart,
        aliases=record.aliases,
        note=record.note,
    )
