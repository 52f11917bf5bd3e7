"""Deleting a model that lies in the models' folder, with all that was written beside it, and never anything else."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from forgelm.errors import Conflict, Forbidden
from forgelm.registry.locks import take
from forgelm.registry.partial import Partial


def delete(models: Path, parts: Sequence[Path]) -> None:
    """Delete the files of one model, and the folders that are empty then.

    Raises `Forbidden` for a file outside the folder or that can't be deleted, `Conflict` for one that is being fetched.
    """
    for path in parts:
        if not _is_inside(models, path):
            raise Forbidden(f"{path} isn't in {models}: it is only linked there, delete it where it is", param="model")
    try:
        with ExitStack() as locks:
            for path in parts:
                locks.enter_context(_hold(Partial(path)))
            for path in parts:
                _unlink(Partial(path))
        for path in parts:
            _prune(models, path.parent)
    except OSError as error:
        raise Forbidden(f"{error.filename or parts[0]} can't be deleted: {error.strerror}", param="model") from None


def discard(path: Path) -> None:
    """Delete what is here of an unfinished file. Raises `Conflict` for one that somebody fetches, and `OSError`."""
    partial = Partial(path)
    if partial.data.exists() or partial.state.exists():
        with _hold(partial):
            partial.discard()


def _is_inside(models: Path, path: Path) -> bool:
    """Whether the folder that a file lies in really is below the models' folder. A link in it may lead elsewhere: the
    link is what would be deleted."""
    return path.parent.resolve().is_relative_to(models.resolve())


def _hold(partial: Partial) -> IO[bytes]:
    """The lock of whoever fetches a file."""
    handle = take(partial.lock)
    if handle is None:
        raise Conflict(f"{partial.target.name} is being fetched: cancel that first", param="model")
    return handle


def _unlink(partial: Partial) -> None:
    # The model first: should the rest fail, nothing is left that looks like one.
    partial.target.unlink(missing_ok=True)
    partial.discard()
    partial.origin.unlink(missing_ok=True)
    partial.lock.unlink(missing_ok=True)


def _prune(models: Path, folder: Path) -> None:
    """Remove `folder` and those above it as long as they are empty."""
    while folder != models and folder.is_relative_to(models):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
