"""Programs that set-up runs: their output goes into a log, one line on the terminal says how far they are.

Part of `forgelm/bootstrap.py`, so the standard library only. It knows pip, and not what is installed or why.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from forgelm import paths

ASTRAY = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
"""Settings that would have pip install outside `.venv`, or find packages elsewhere and skip them."""

ERROR = re.compile(r"\berror:|CMake Error|FAILED:|No space left")
QUIET_SECONDS = 15
"""Between two lines of progress in a log."""


class SetupError(Exception):
    """Set-up can't go on; `str(error)` is what a person reads, one line per thing to do."""


class Progress:
    """One line on stdout that renews itself on a terminal; elsewhere a line every few seconds at most."""

    def __init__(self, label: str, expected_seconds: float = 0.0) -> None:
        """`expected_seconds` is the first guess at the whole time; without one no time left is shown."""
        self._label = label
        self._expected = expected_seconds
        self._start = time.monotonic()
        self._done = 0
        self._total = 0
        self._printed = self._start
        self._terminal = sys.stdout.isatty()

    def update(self, done: int, total: int) -> None:
        """`done` of `total` steps are behind us."""
        self._done, self._total = done, total
        due = time.monotonic() - self._printed > QUIET_SECONDS or done == total
        if due and not self._terminal:
            self._printed = time.monotonic()
            print(self._text(), flush=True)

    def tick(self) -> None:
        """Renew the line, so that the clock runs during a long step too."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{self._text()[:width]}", end="", flush=True)

    def close(self) -> None:
        """Leave the line as it is and go to the next."""
        if self._terminal:
            print(flush=True)

    def _text(self) -> str:
        elapsed = time.monotonic() - self._start
        count = f" {self._done}/{self._total}" if self._total else ""
        finished = 0 < self._total == self._done
        left = f", about {clock(self._seconds_left(elapsed))} left" if self._expected and not finished else ""
        return f"{self._label}{count}, {clock(elapsed)}{left}"

    def _seconds_left(self, elapsed: float) -> float:
        # The first steps say little about the rest: until a tenth is done the first guess counts.
        if 10 * self._done <= self._total:
            return max(self._expected - elapsed, 1.0)
        return elapsed * (self._total - self._done) / self._done


def clock(seconds: float) -> str:
    """Minutes and seconds, `m:ss`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def log_path(name: str) -> Path:
    """Where one step's output goes."""
    directory = paths.cache_dir() / "setup"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}.log"


def environment() -> dict[str, str]:
    """Ours, without what leads pip astray."""
    kept = {name: value for name, value in os.environ.items() if name not in ASTRAY}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def run_pip(
    python: Path,
    arguments: list[str],
    *,
    log: Path,
    progress: Progress,
    on_line: Callable[[str], None] = lambda line: None,
    variables: dict[str, str] | None = None,
) -> int:
    """Run that Python's pip, its output into `log` and line by line to `on_line`; returns its exit status."""
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            [str(python), "-m", "pip", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment(), **(variables or {})},
            # A session of its own, so that ending it ends the compilers under it too.
            start_new_session=True,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in ticking_lines(child.stdout, progress.tick):
                sink.write(line + b"\n")
                on_line(line.decode(errors="replace"))
            return child.wait()
        except BaseException:
            stop(child)
            raise
        finally:
            progress.close()


def stop(child: subprocess.Popen[bytes]) -> None:
    """End the child and what runs under it, first in the way that lets pip and ninja tidy up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(child.pid, number)
            child.wait(timeout=10)
            return


def ticking_lines(pipe: IO[bytes], tick: Callable[[], None]) -> Iterator[bytes]:
    """The pipe's lines until its end; `tick` is called whenever some arrive, and every half second without any."""
    rest = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], 0.5)
        if ready:
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        tick()
    if rest:
        yield rest


@contextlib.contextmanager
def exclusive(directory: Path, other: str) -> Iterator[None]:
    """Hold the lock on a directory; says who is waited for. The system lets go of it when this process ends."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for {other} to finish", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def fail(what: str, log: Path) -> NoReturn:
    """Print the first error in the log and its end, then raise `SetupError`."""
    lines = [line for line in map(plain, log.read_text(errors="replace").splitlines()) if line]
    last = max(len(lines) - 6, 0)
    first = next((index for index, line in enumerate(lines[:last]) if ERROR.search(line)), last)
    for line in [*lines[first : min(first + 8, last)], *lines[last:]]:
        print(f"  | {line[:200]}", file=sys.stderr)
    raise SetupError(f"{what} The full log: {log}")


def plain(line: str) -> str:
    """The line without colours and indentation."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
