"""Downloads as they are kept on disk: a file for each, and a lock that its process holds while it is at work on it.

A process that dies lets go of its locks, and the next one goes on with what isn't ended. Those that another living
process has are its own business.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from forgelm import log
from forgelm.ipc.registry import Download
from forgelm.registry.locks import take
from forgelm.registry.planning import Planned
from forgelm.registry.statefile import write


class Record(msgspec.Struct, frozen=True):
    """One download."""

    download: Download
    planned: Planned


class Records:
    """The downloads in one state directory."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "downloads"
        self._held: dict[str, IO[bytes]] = {}

    def claim(self, name: str) -> bool:
        """Take a download; False when another process has it. Raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle = take(self._lock(name))
        if handle is None:
            return False
        self._held[name] = handle
        return True

    def release(self, name: str) -> None:
        """Let go of a download."""
        handle = self._held.pop(name, None)
        if handle is not None:
            handle.close()

    def save(self, record: Record) -> None:
        """Keep a download as it is now. Raises `OSError`."""
        write(self._file(record.download.id), msgspec.json.encode(record))

    def load(self) -> Iterator[Record]:
        """All that can be read."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                log.get("registry").warning("a download can't be read", path=str(path), reason=str(error))

    def drop(self, name: str) -> None:
        """Forget an ended download."""
        self.release(name)
        self._file(name).unlink(missing_ok=True)
        self._lock(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _lock(self, name: str) -> Path:
        return self._folder / f".{name}.lock"
