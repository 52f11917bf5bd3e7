"""Where profiles are found: the user's own, then the shipped ones."""

import os
from pathlib import Path

import msgspec

from forgelm import paths
from forgelm.config import Profile
from forgelm.errors import ConfigError


def load_profile(name_or_path: str) -> Profile:
    """The profile called `name_or_path`, or the one in that file.

    A name is looked up among the user's profiles, then the shipped ones. Raises `ConfigError`.
    """
    return read_profile(_find(name_or_path))


def read_profile(path: Path) -> Profile:
    """Decode one file. Raises `ConfigError` with the file and the path of the wrong key."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise ConfigError(f"profile {path} can't be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {path}: {error}") from None


def available_profiles() -> dict[str, Path]:
    """Name → file of every profile on this machine; the user's own come first and win.

    Raises `ConfigError` for a folder of them that this user may not read.
    """
    found: dict[str, Path] = {}
    for directory in (paths.user_profiles_dir(), paths.shipped_profiles_dir()):
        try:
            names = sorted(entry.name for entry in directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(
                f"the profiles' folder {directory} can't be read by uid {os.geteuid()}: {error.strerror}"
            ) from None
        for path in (directory / name for name in names if name.endswith(".toml")):
            found.setdefault(path.stem, path)
    return found


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path).expanduser()
    known = available_profiles()
    if name_or_path not in known:
        raise ConfigError(f"no profile named {name_or_path!r}; there are: {', '.join(sorted(known))}")
    return known[name_or_path]
