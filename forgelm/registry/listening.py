"""A Unix socket that one process at a time listens on, for this user alone."""

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import IO

from forgelm.errors import MachineError
from forgelm.registry.locks import take

LONGEST = 107
"""Bytes of a socket's path that Linux takes."""
BACKLOG = 128


class Listener:
    """Listens from `with` on, and takes the socket away in the end.

    What a dead process left is replaced. Whether it is dead its lock tells, which the system lets go of: a file that
    two processes could both find stale, both remove and both make anew would be two sockets, one of them out of reach.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[bytes] | None = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> "Listener":
        """Listen. Raises `MachineError` when that is impossible, or somebody else does."""
        if len(os.fsencode(self._path)) > LONGEST:
            raise MachineError(f"{self._path} is too long for a socket: at most {LONGEST} bytes")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = take(self._path.with_name(f".{self._path.name}.lock"))
            if self._lock is None:
                self._close()
                raise MachineError(f"another registry listens on {self._path}")
            self._path.unlink(missing_ok=True)
            self._bind()
        except OSError as error:
            self._close()
            raise MachineError(f"can't listen on {self._path}: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._path.unlink(missing_ok=True)
        self._close()

    def _bind(self) -> None:
        # Nobody else may connect, not even between bind and chmod.
        before = os.umask(0o177)
        try:
            self.socket.bind(str(self._path))
        finally:
            os.umask(before)
        self.socket.listen(BACKLOG)

    def _close(self) -> None:
        self.socket.close()
        if self._lock is not None:
            self._lock.close()
