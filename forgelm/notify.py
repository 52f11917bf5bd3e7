"""Tells the service manager how the server is, as sd_notify(3) does: datagrams to the socket `NOTIFY_SOCKET` names.

It knows that protocol and the supervisor's states, nothing of requests. Without a manager it is silent, and one that
can't be reached stops nobody. The libraries for it either rest since 2017 (sdnotify) or compile against libsystemd.
"""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping

from forgelm import log
from forgelm.supervisor import Phase, Status

TICK_SECONDS = 0.5
"""How often a change is looked for; less where the manager wants to hear of us more often."""
WORDS = 400
"""Characters of a state at most: a manager drops a message of more than 4,096 bytes, READY=1 with it."""
SERVING = (Phase.READY, Phase.UNLOADED)
"""States in which a request is answered: one that rests is woken by it."""


class Notifier:
    """One manager's ear."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """`address` is a path or, with "@" in front, an abstract name; "" is nobody's.

        Within each `watchdog_seconds` the manager wants to hear that the server is alive; 0: it doesn't.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None
        self._complained = False
        self._ready = False
        self._stopping = self._told_stopping = False
        self._told = ""
        self._log = log.get("notify")

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> "Notifier":
        """The one that the variables name. They are taken out: child processes don't speak for the server."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        # Without the id it is meant for whoever has the variables.
        ours = environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if ours and microseconds.isdecimal() else 0.0)

    async def tell(self, read: Callable[[], Status], model: Callable[[], str]) -> None:
        """Tell of every state, of readiness once, and that this event loop turns, until cancelled."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        half = self._watchdog_seconds / 2
        pause = min(TICK_SECONDS, half or TICK_SECONDS)
        alive_at = loop.time()
        while True:
            if self._stopping:
                self._tell_stopping()
            else:
                self._tell_state(read(), model())
            if half and loop.time() >= alive_at and self._send("WATCHDOG=1"):
                # Of the ticks about half of the time away the earlier one.
                alive_at = loop.time() + half - pause
            await asyncio.sleep(pause)

    def stopping(self) -> None:
        """The server has been told to end, or gives up; no state is told from now on."""
        self._stopping = True
        self._tell_stopping()

    def close(self) -> None:
        """Nothing more will be told."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # What didn't get through, because a queue was full, is told again at the next tick.

    def _tell_state(self, status: Status, model: str) -> None:
        words = in_words(status, model)
        first = status.phase in SERVING and not self._ready
        if (first or words != self._told) and self._send(f"READY=1\nSTATUS={words}" if first else f"STATUS={words}"):
            self._told, self._ready = words, self._ready or first

    def _tell_stopping(self) -> None:
        if not self._told_stopping:
            self._told_stopping = self._send("STOPPING=1\nSTATUS=stopping")

    def _send(self, text: str) -> bool:
        """Whether it got through."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto(text.encode(), self._address)
        except (OSError, ValueError) as error:
            # Each tick would say so otherwise.
            if not self._complained:
                self._complained = True
                self._log.warning("the service manager can't be told anything", reason=str(error))
            return False
        return True


def in_words(status: Status, model: str) -> str:
    """What `systemctl status` shows: one line whatever names and reasons say, as a second would be another message.

    A NUL, or half a character in a file's name, would have the whole message dropped.
    """
    percent = f"{status.percent:.0f} %"
    match status.phase:
        case Phase.DOWNLOADING:
            words = f"downloading {model}: {percent}"
        case Phase.LOADING:
            words = f"loading {model}: {percent}"
        case Phase.READY:
            words = f"serving {model}"
        case Phase.UNLOADED:
            words = f"{model} is unloaded until the next request"
        case Phase.RESTARTING | Phase.FAILED | Phase.STOPPED:
            words = status.phase.value
    printed = "".join(each if each.isprintable() else " " for each in f"{words}: {status.reason}".rstrip(": "))
    line = " ".join(printed.split())
    return line if len(line) <= WORDS else f"{line[: WORDS - 1]}…"
