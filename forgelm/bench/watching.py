"""What a server on this machine takes while it is measured: the most resident memory, and the most memory of cards."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from forgelm.gpu_status import read_gpu_status
from forgelm.ipc.status import ServerStatus
from forgelm.processes import read_process

INTERVAL_SECONDS = 0.2
FRESH_SECONDS = 2.0
RELAYS = ("docker-proxy", "rootlessport", "pasta", "ssh", "kubectl", "socat")
"""Programs that listen for a server which is elsewhere."""


@dataclass(frozen=True)
class Peaks:
    """The most that was seen, in bytes; None where nothing could be."""

    rss: int | None
    """Over all of the server's processes. Pages that several of them map count in each."""
    vram: int | None
    """In use on all cards, whoever uses it."""


class Watch:
    """Looks again and again, in a thread of its own, from `__enter__` to `__exit__`. May be used for several rows."""

    def __init__(self, pids: Callable[[], Sequence[int]], *, cards: bool = True) -> None:
        """`pids` names the server's processes now; it is asked at each look, since an engine may start anew."""
        self._pids = pids
        self._cards = cards
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._rss = self._vram = 0

    @property
    def peaks(self) -> Peaks:
        """Of the last period."""
        return Peaks(self._rss or None, self._vram or None)

    def __enter__(self) -> "Watch":
        self._rss = self._vram = 0
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        self._look()
        while not self._over.wait(INTERVAL_SECONDS):
            self._look()
        # Once more: nobody gives anything back in between, and a short row would have one look alone.
        self._look()

    def _look(self) -> None:
        uses = [use for pid in self._pids() if (use := read_process(pid)) is not None]
        self._rss = max(self._rss, sum(use.rss_bytes for use in uses))
        if self._cards:
            self._vram = max(self._vram, sum(card.memory_used_bytes for card in read_gpu_status()))


class Tree:
    """A process and its descendants, as they were at most `FRESH_SECONDS` ago: finding them reads all of /proc."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: list[int] = []
        self._next = 0.0

    def __call__(self) -> Sequence[int]:
        """Their ids."""
        now = time.monotonic()
        if now >= self._next:
            self._known, self._next = tree_of(self._pid), now + FRESH_SECONDS
        return self._known


def tree_of(pid: int) -> list[int]:
    """A process and its descendants that live now."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    return []


def watch_tree(pid: int) -> Watch:
    """Watch a server that was started here, by its first process."""
    return Watch(Tree(pid))


def watch_server(url: str, status: ServerStatus | None = None) -> Watch | None:
    """Watch whoever serves `url`; None for one on another machine, or whose processes can't be seen.

    `status` is what a ForgeLM server says of itself: it may belong to another user, or be behind somebody who only
    passes things on.
    """
    parts = urlsplit(url)
    if not is_here(parts.hostname or ""):
        return None
    if status is not None and _are_here(status):
        return watch_tree(next(each.pid for each in status.processes if each.role == "api"))
    pid = _listener(parts.port or (443 if parts.scheme == "https" else 80))
    return None if pid is None else watch_tree(pid)


def _are_here(status: ServerStatus) -> bool:
    """Whether the ids that a server knows its processes by are this machine's: a container has its own."""
    pairs = [(each.rss_bytes, read_process(each.pid)) for each in status.processes]
    same = all(seen is not None and abs(seen.rss_bytes - said) <= said / 4 for said, seen in pairs)
    return same and any(each.role == "api" for each in status.processes)


def is_here(host: str) -> bool:
    """Whether a name is an address of this machine."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (socket.gaierror, UnicodeError):
        return False
    ours = {address.address.split("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return bool(found) and all(str(one) in ours or ipaddress.ip_address(one).is_loopback for one in found)


def _listener(port: int) -> int | None:
    """The process that listens on a port, as far as this user may see it; none that only passes things on."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                return None if name in RELAYS else int(connection.pid)
    return None
