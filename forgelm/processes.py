"""What a process takes: resident memory and CPU time, by its id. Two small reads of /proc, about 20 µs."""

import os
from pathlib import Path

import msgspec

from forgelm.machine import PROC

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class ProcessUse(msgspec.Struct, frozen=True):
    """One process, now."""

    rss_bytes: int
    """Resident set; a model's mapped weights count in it."""
    cpu_seconds: float
    """User and system time since it began, all threads."""


def read_process(pid: int, proc: Path = PROC) -> ProcessUse | None:
    """What process `pid` takes; None where there is none, or where it has ended and nobody has waited for it yet."""
    if pid <= 0:
        return None
    if not (proc / "self").exists():
        return _from_psutil(pid)
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The program's name stands in brackets and may hold anything, brackets too.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    user, system, pages = int(fields[11]), int(fields[12]), int(fields[21])
    return ProcessUse(pages * _PAGE, (user + system) / _TICK)


def _from_psutil(pid: int) -> ProcessUse | None:
    """The same where there is no /proc."""
    import psutil  # type: ignore[import-untyped]

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return ProcessUse(process.memory_info().rss, times.user + times.system)
    except psutil.Error:
        return None
