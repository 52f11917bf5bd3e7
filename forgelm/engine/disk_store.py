"""Saved states on disk, one blocking call at a time: a state is there and sound, or it isn't there.

Nothing that goes wrong with the disk is an error to the caller: it is logged, and the answer is no. Threads, and who
waits for whom, are decided elsewhere.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

from forgelm import log
from forgelm.engine.disk_files import NoSpace, Shelf
from forgelm.engine.disk_format import (
    Broken,
    Bytes,
    Header,
    Tokens,
    digest_of,
    encode,
    read_header,
    read_state,
    state_name,
)

T = TypeVar("T")


class Stopped(Exception):
    """Raised by who waits for a write, to end it."""


@dataclass(frozen=True, slots=True, eq=False)
class DiskEntry:
    """A state that can be read."""

    name: str
    tokens: Tokens
    """What led to it, shape (n,), read-only."""
    partial: bool
    """The recurrent part alone."""
    size: int
    """Bytes of the state."""
    last_used: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A state to save."""

    partial: bool
    tokens: bytes
    """int32, little-endian."""
    data: Bytes


class StateStore:
    """The states of one identity in one directory, which may hold others' as well."""

    def __init__(self, directory: Path, identity: str, limit: int, keep_free: int, gone: Callable[[str], None]) -> None:
        """See `Shelf` for the bounds and `gone`. A directory that can't be used is logged, and nothing is kept."""
        self._identity = identity
        self._log = log.get("disk")
        self._shelf = Shelf(directory, limit, keep_free, gone)
        self.quiet = False
        """Something is wrong with the disk: nothing more is saved."""
        self._said_full = False
        try:
            self._shelf.open()
        except OSError as error:
            self._go_quiet(error)

    def __contains__(self, name: str) -> bool:
        """Whether there was such a file when we last looked. Answers at once."""
        return self._shelf.entry(name) is not None

    def name(self, state: State) -> str:
        """What the state's file is called."""
        return state_name(self._identity, state.partial, state.tokens)

    def save(self, state: State, between: Callable[[], None]) -> bool:
        """Whether the state is on disk now. `between` is called before each chunk of work and may raise `Stopped`."""
        try:
            between()
            self._save(state, between)
        except Stopped:
            return False
        except FileNotFoundError as error:
            # Somebody is emptying the cache by hand. The directory will be made again.
            self._log.info("state not saved", reason=_reason(error))
            return False
        except NoSpace as error:
            self._say_full(error)
            return False
        except OSError as error:
            self._go_quiet(error)
            return False
        return True

    def load(self, name: str) -> Bytes | None:
        """The state, shape (bytes,); `None` if it isn't there. Of another identity it isn't."""
        data = self._verified(name, read_state)
        if data is not None:
            self._touch(name)
        return data

    def delete(self, name: str) -> None:
        """Delete a file, if it can be done."""
        try:
            self._shelf.delete(name)
        except OSError as error:
            self._log.info("state not deleted", file=name, reason=_reason(error))

    def forget(self, name: str) -> None:
        """Count a file as gone, before it is. Answers at once."""
        self._shelf.forget(name)

    def index(self) -> list[DiskEntry]:
        """Every state, last used first, from the headers alone; damaged files are deleted."""
        try:
            self._shelf.look()
        except OSError as error:
            self._log.info("saved states can't be listed", reason=_reason(error))
        found = (self._verified(name, lambda _, header: header) for name in reversed(self._shelf.names()))
        return [self._describe(header) for header in found if header is not None]

    def _save(self, state: State, between: Callable[[], None]) -> None:
        name = self.name(state)
        if self._shelf.use(name):
            return
        header = Header(self._identity, state.partial, state.tokens, len(state.data), digest_of(state.data, between))
        head = encode(header)
        self._shelf.make_room(len(head) + len(state.data))
        self._shelf.put(name, head, state.data, between)

    def _verified(self, name: str, take: Callable[[FileIO, Header], T]) -> T | None:
        """What `take` finds in a file of ours; `None` if the file isn't there, isn't ours or isn't sound."""
        try:
            with FileIO(self._shelf.path(name), opener=_open) as file:
                header = read_header(file, name)
                if header is None or header.identity != self._identity:
                    return None
                return take(file, header)
        except Broken as error:
            self._log.info("damaged state deleted", file=name, reason=str(error))
            self.delete(name)
        except FileNotFoundError:
            self._shelf.forget(name)
        except (OSError, MemoryError) as error:
            self._log.info("state not read", file=name, reason=_reason(error))
        return None

    def _touch(self, name: str) -> None:
        try:
            self._shelf.use(name)
        except OSError as error:
            self._log.debug("state's last use not kept", file=name, reason=_reason(error))

    def _describe(self, header: Header) -> DiskEntry:
        entry = self._shelf.entry(header.name)
        used = entry.used / 1e9 if entry else 0.0
        return DiskEntry(header.name, header.token_ids(), header.partial, header.size, used)

    def _go_quiet(self, error: OSError) -> None:
        self.quiet = True
        self._log.warning("no more states are saved on disk", reason=_reason(error))

    def _say_full(self, error: NoSpace) -> None:
        """Once: with every answer there would be another."""
        if not self._said_full:
            self._said_full = True
            self._log.warning("no room for saved states", reason=str(error))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _reason(error: Exception) -> str:
    """One line, with the file's name where there is one."""
    return str(error) or type(error).__name__
