"""The `forgelm` program as its users meet it: a process, its streams and its exit code, on a pipe or a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FORGELM = (sys.executable, "-m", "forgelm")
PATIENCE = 30.0

# What would change our output or send us elsewhere.
_CLEARED = ("NO_COLOR", "FORCE_COLOR", "OPENAI_API_KEY")


def environment(**changes: str) -> dict[str, str]:
    """The test's own environment without anything of ForgeLM's, with `changes`; finds the package from any place."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FORGELM_") and k not in _CLEARED}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **changes}


def forgelm(*arguments: str, text: str = "", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `forgelm` to its end with `text` piped in."""
    return subprocess.run(
        [*FORGELM, *arguments],
        input=text,
        capture_output=True,
        text=True,
        env=environment(**(env or {})),
        timeout=PATIENCE,
        check=False,
    )


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start `forgelm` so that it can be interrupted, even when the tests themselves run with SIGINT ignored."""
    with_default = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen([*FORGELM, *arguments], text=True, env=environment(), **options)
    finally:
        signal.signal(signal.SIGINT, with_default)


class Terminal:
    """A program on a terminal of its own. Use as a context manager: it is killed and reaped at the end."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**(env or {})),
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Press keys; `\\r` is Enter, `\\x04` Ctrl-D."""
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        """What Ctrl-C does once the program has the terminal in its usual mode."""
        self.process.send_signal(signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Interrupt until `text` appears: a signal that comes between readline's prompt and its wait for a key is
        noticed only at the next one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.interrupt()
            if self._appears(text, time.monotonic() + 0.5):
                break
        self.expect(text)

    def expect(self, text: str) -> str:
        """Read until `text` appears; return what came up to it and forget it. Fails after `PATIENCE` seconds."""
        assert self._appears(text, time.monotonic() + PATIENCE), f"waited for {text!r}, saw {self.output!r}"
        seen, _, self.output = self.output.partition(text)
        return seen + text

    def finish(self) -> tuple[str, int]:
        """Read to the program's end; its remaining output and exit code."""
        try:
            while True:
                self.output += self._read()
        except EOFError:
            return self.output, self.process.wait(PATIENCE)

    def _appears(self, text: str, deadline: float) -> bool:
        while text not in self.output:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            self.output += self._read()
        return True

    def _read(self) -> str:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            data = b""
        if not data:
            raise EOFError(f"the program ended: {self.output!r}")
        return data.decode("utf-8", "replace")
