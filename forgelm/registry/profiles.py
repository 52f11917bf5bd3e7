"""Profiles as the registry sees them: which file each of them serves, and new ones for what Ollama had settings for."""

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

import msgspec

from forgelm import log, paths
from forgelm.config import ModelSource, Profile
from forgelm.errors import ConfigError
from forgelm.profiles import available_profiles, read_profile
from forgelm.registry.statefile import write


def read_profiles() -> dict[str, Profile]:
    """Name → profile, the user's own first. One that can't be read is left out, and said so in the log."""
    found = {}
    for name, path in available_profiles().items():
        try:
            status = path.stat()
        except OSError:
            continue
        profile = _read(path, status.st_mtime_ns, status.st_size)
        if profile is not None:
            found[name] = profile
    return found


def path_of(models: Path, source: ModelSource) -> Path:
    """Where the file of a profile is, or would be; one that was imported has its own place."""
    return models / source.repo / source.file


def write_profile(toml: str, model: Path, taken: Collection[str] = ()) -> str:
    """Put a profile for the file at `model` among the user's own; the name it got.

    One that serves this file already stays as it is, since it may have been changed by hand; names of others are
    avoided, and those that are `taken` by other settings for this file. Raises `ConfigError`, or `OSError` when it
    can't be written.
    """
    name = _named(toml)
    profiles = read_profiles()
    used = available_profiles().keys() | set(taken)
    number, free = 1, name
    while free in used:
        if free not in taken and free in profiles and profiles[free].model.file == str(model):
            return free
        number += 1
        free = f"{name}-{number}"
    folder = paths.user_profiles_dir()
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{free}.toml", toml.encode())
    return free


def _named(toml: str) -> str:
    """The name that a profile gives itself, as a file's name. Raises `ConfigError`."""
    try:
        name = msgspec.toml.decode(toml, type=Profile).name
    except msgspec.DecodeError as error:
        raise ConfigError(f"the profile made of its settings is wrong: {error}") from None
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip(".-")
    if not plain:
        raise ConfigError(f"the profile made of its settings has no name: {name!r}")
    return plain


@lru_cache(maxsize=256)
def _read(path: Path, _mtime_ns: int, _size: int) -> Profile | None:
    """Read once for each state of the file: TOML is slow, and models are listed often."""
    try:
        return read_profile(path)
    except ConfigError as error:
        log.get("registry").warning("a profile is left out", reason=str(error))
        return None
