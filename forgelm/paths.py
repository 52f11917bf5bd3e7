"""Where files live: the XDG base directories, with `FORGELM_*` overrides. Nothing goes into a clone or a store."""

import os
from pathlib import Path


def _base(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says a relative path here is invalid and must be ignored.
    return Path(value) if value.startswith("/") else Path.home() / default


def config_dir() -> Path:
    """The user's own profiles and settings."""
    return _base("XDG_CONFIG_HOME", ".config") / "forgelm"


def data_dir() -> Path:
    """Models and other files worth keeping."""
    return _base("XDG_DATA_HOME", ".local/share") / "forgelm"


def models_dir() -> Path:
    """Downloaded models; `FORGELM_MODELS` moves it (a volume, a second disk)."""
    override = os.environ.get("FORGELM_MODELS", "")
    return Path(override).expanduser() if override else data_dir() / "models"


def cache_dir() -> Path:
    """Files that can be made again: compiled wheels, downloads."""
    return _base("XDG_CACHE_HOME", ".cache") / "forgelm"


def state_dir() -> Path:
    """What is worth keeping between runs and isn't data: recorded measurements."""
    return _base("XDG_STATE_HOME", ".local/state") / "forgelm"


def registry_dir() -> Path:
    """The registry's index, its unfinished downloads and what was imported."""
    return state_dir() / "registry"


def runtime_dir() -> Path:
    """Sockets of running processes; gone after a restart of the machine where the system says so."""
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(value) / "forgelm" if value.startswith("/") else state_dir() / "run"


def shipped_profiles_dir() -> Path:
    """The profiles that come with ForgeLM: beside the package in a clone, under `share/` when installed."""
    override = os.environ.get("FORGELM_PROFILES", "")
    if override:
        return Path(override)
    clone = Path(__file__).resolve().parent.parent / "profiles"
    if clone.is_dir():
        return clone
    import sysconfig

    return Path(sysconfig.get_path("data")) / "share" / "forgelm" / "profiles"


def user_profiles_dir() -> Path:
    """Profiles the user wrote; looked at before the shipped ones."""
    return config_dir() / "profiles"


def everything() -> dict[str, Path]:
    """Name → path of each directory, as `forgelm paths` prints them."""
    return {
        "config": config_dir(),
        "models": models_dir(),
        "cache": cache_dir(),
        "state": state_dir(),
        "profiles (shipped)": shipped_profiles_dir(),
        "profiles (yours)": user_profiles_dir(),
    }
