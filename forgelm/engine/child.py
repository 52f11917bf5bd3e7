"""What every child process of ours does when it starts: live and die with its parent, and report its load."""

import ctypes
import signal
from collections.abc import Callable

from forgelm.engine.channel import PeerGone
from forgelm.ipc.messages import Loading, Message

_PR_SET_PDEATHSIG = 1


def begin() -> None:
    """Leave signals to the parent, and end with it."""
    # Ctrl-C reaches the whole terminal group, systemd's SIGTERM the whole unit; when to stop is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Asked of the kernel: a computation that hangs never reads the closed socket.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Reporter:
    """Sends `Loading` when progress moved by a percent, not at each of llama.cpp's hundreds of calls."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        """`send` is a `Channel`'s."""
        self._send = send
        self._sent = -1.0

    def __call__(self, fraction: float) -> bool:
        """False once nobody listens. An exception can't cross llama.cpp's frames."""
        if fraction - self._sent < 0.01 and fraction < 1.0:
            return True
        self._sent = fraction
        try:
            self._send(Loading(fraction))
        except PeerGone:
            return False
        return True
