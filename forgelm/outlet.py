"""A file descriptor that text goes to, and whose reader may be slow, or not read at all: nobody waits for it.

What a reader doesn't take at once is kept, up to a bound, and written by a thread when it reads again; beyond the
bound whole lines are dropped and counted. A line that can be written at once is written by whoever writes it, so that
the last one before a crash is out.
"""

import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TextIO

BACKLOG_BYTES = 1 << 20
"""What is kept for a reader that doesn't read: hours of lines about requests, or a second of a load at debug level."""
LAST_SECONDS = 0.5
"""How long the end of the process waits for a slow reader."""

Write = Callable[[bytes], int]
"""Writes what can be written without waiting and returns how many bytes that were. Raises `OSError`."""


class Outlet:
    """Writes lines, whole and in order. Any thread may."""

    def __init__(self, descriptor: int, notice: Callable[[int], bytes] = lambda _: b"") -> None:
        """`notice` is the line that tells how many were dropped."""
        self._descriptor = descriptor
        self._write, self._close = _writer(descriptor)
        self._notice = notice
        self._lock = threading.Lock()
        self._backlog: deque[bytes] = deque()
        self._bytes = 0
        """In the backlog."""
        self._dropped = 0
        self._empty = threading.Event()
        """There is no backlog."""
        self._empty.set()

    def write(self, line: bytes) -> None:
        """Write a line now, or as soon as its reader takes it."""
        with self._lock:
            if self._empty.is_set():
                line = self._now(line)
                if line:
                    self._keep(line)
                    self._empty.clear()
                    threading.Thread(target=self._drain, name="outlet", daemon=True).start()
            elif self._bytes + len(line) <= BACKLOG_BYTES:
                self._keep(line)
            else:
                self._dropped += 1

    @property
    def stalled(self) -> bool:
        """Whether something waits for the reader."""
        return not self._empty.is_set()

    def flush(self) -> None:
        """Wait for a moment until everything is written."""
        self._empty.wait(LAST_SECONDS)

    def close(self) -> None:
        """Let go of what was opened here, unless something still waits; nothing may be written any more."""
        self.flush()
        with self._lock:
            if not self.stalled:
                self._write = _closed
                self._close()

    def _keep(self, line: bytes) -> None:
        self._backlog.append(line)
        self._bytes += len(line)

    def _now(self, line: bytes) -> bytes:
        """Write; what couldn't be written yet."""
        try:
            return line[self._write(line) :]
        except BlockingIOError:
            return line
        except OSError:
            # Nobody reads any more, or the disk is full: neither is a reason to end.
            return b""

    def _drain(self) -> None:
        """Write the backlog as its reader takes it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while not self._empty.is_set():
            poll.poll()
            with self._lock:
                self._write_next()

    def _write_next(self) -> None:
        line = self._backlog[0]
        rest = self._now(line)
        self._bytes -= len(line) - len(rest)
        if rest:
            self._backlog[0] = rest
            return
        self._backlog.popleft()
        if not self._backlog and self._dropped:
            self._keep(self._notice(self._dropped))
            self._dropped = 0
        if not self._backlog:
            self._empty.set()


def put(text: str, stream: TextIO) -> None:
    """Print a line on a standard stream. One that is closed, or that nobody reads any more, is no reason to stop."""
    with suppress(OSError, ValueError):
        # What is written here mustn't overtake what is in the stream's buffer, and nothing is but for a moment.
        stream.flush()
        outlet = _outlet(stream.fileno())
        outlet.write(f"{text}\n".encode("utf-8", "replace"))
        outlet.flush()


@cache
def _outlet(descriptor: int) -> Outlet:
    return Outlet(descriptor)


def _closed(_: bytes) -> int:
    raise OSError("closed")


def _writer(descriptor: int) -> tuple[Write, Callable[[], None]]:
    """How to write there without waiting, and how to end that.

    The descriptor itself stays as it is: other processes have it too, and `O_NONBLOCK` would be theirs as well.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=os.dup(descriptor))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT), connection.close
    own = _opened_again(descriptor) if stat.S_ISFIFO(mode) or os.isatty(descriptor) else None
    if own is None:
        return lambda data: os.write(descriptor, data), lambda: None
    return lambda data: os.write(own, data), lambda: os.close(own)


def _opened_again(descriptor: int) -> int | None:
    """The same pipe or terminal, without waiting; None where that can't be: no /proc, nobody reads, somebody else's."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
