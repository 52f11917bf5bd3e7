"""Room on the disk, and the system's refusals to write in plain words."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forgelm.errors import ForgeError, MachineError, NoSpace

MARGIN = 64 << 20
"""Bytes left free on the disk, for everybody else who writes there."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM)
IN_THE_WAY = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
ELSEWHERE = "or point FORGELM_MODELS at another folder"


def check(folder: Path, needed: int, what: str) -> None:
    """Raises `NoSpace` where `needed` more bytes don't fit into `folder`'s disk."""
    free = free_bytes(folder)
    if needed + MARGIN > free:
        raise NoSpace(
            f"{folder} has {_size(free)} free, and {what} takes {_size(needed)} more, with {_size(MARGIN)} to be left "
            f"free: make room there, {ELSEWHERE}. What is here already stays."
        )


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write there. Raises `OSError`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """Turn the system's refusals about `target` and the files beside it into errors that say what to do."""
    try:
        yield
    except OSError as error:
        raise _plain(error, target) from error


def _plain(error: OSError, target: Path) -> ForgeError:
    folder, code = target.parent, error.errno
    if code in FULL:
        return NoSpace(f"{folder} is full: make room there, {ELSEWHERE}. What is here of {target.name} already stays.")
    if code == errno.EFBIG:
        return NoSpace(f"{folder} can't hold a file as large as {target.name}: lift the limit, {ELSEWHERE}.")
    if code in (errno.EROFS, *FORBIDDEN):
        allow = f"let uid {os.geteuid()} write there" if code in FORBIDDEN else "allow it"
        return MachineError(f"{error.filename or folder} can't be written ({error.strerror}): {allow}, {ELSEWHERE}.")
    if code in IN_THE_WAY:
        return MachineError(
            f"{error.filename or target} is in the way of {target} ({error.strerror}): move it, {ELSEWHERE}."
        )
    if code in NO_LOCKS:
        return MachineError(f"{folder} is on a file system without locks: mount it with them, {ELSEWHERE}.")
    return MachineError(f"{target} can't be written: {error.strerror or error}.")


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
