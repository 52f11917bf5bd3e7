"""This machine as a result describes it, and a result of what was measured on it."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from forgelm import __version__
from forgelm.bench.result import Ceiling, Machine, Result, Row, Subject
from forgelm.machine import PROC, read_machine

HERE = Path(__file__).parent


def describe_machine(proc: Path = PROC) -> Machine:
    """Hardware and software, without names of hosts, users or folders."""
    found = read_machine(proc)
    return Machine(
        cpu=cpu_name(proc),
        cores=found.cores.usable,
        memory_bytes=found.memory.usable,
        gpus=tuple(card.name for card in found.gpus.cards),
        driver=found.gpus.cards[0].driver if found.gpus.cards else "",
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def cpu_name(proc: Path = PROC) -> str:
    """The processor's name; its architecture where it has none."""
    try:
        lines = (proc / "cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def commit() -> str:
    """The clone's commit, with "+" where tracked files differ from it; "" outside of one."""
    if not (HERE.parent.parent / ".git").exists():
        # Installed: the package may lie inside somebody else's repository.
        return ""
    head = _git("rev-parse", "--short=10", "HEAD")
    return head + ("+" if head and _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], cwd=HERE, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip()


def command_line(arguments: Sequence[str]) -> str:
    """What was typed after the program's name; files without their folders, addresses without passwords."""
    return shlex.join(["forgelm", *(_bare(each) for each in arguments)])


def _bare(argument: str) -> str:
    option, separator, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    if "://" in value:
        parts = urlsplit(value)
        value = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    elif os.sep in value:
        value = Path(value).name
    return f"{option}{separator}{value}"


def make_result(
    bench: str, subject: Subject, ceiling: Ceiling | None, rows: Sequence[Row], notes: Sequence[str] = ()
) -> Result:
    """What a command ends with. `bench` is "run", "replay", "tune" or "table"."""
    return Result(
        bench=bench,
        forgelm=__version__,
        commit=commit(),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(sys.argv[1:]),
        machine=describe_machine(),
        subject=subject,
        ceiling=ceiling,
        rows=tuple(rows),
        notes=tuple(notes),
    )
