"""Prepare a clone for use: `.venv`, the locked packages, and llama.cpp compiled once for this processor.

Run it as `python3 forgelm/bootstrap.py` (the Makefile does). It needs the standard library only, and it knows nothing
of models or servers. A stamp in `.venv` makes a second run return at once; a run that was interrupted or failed leaves
a stamp that says so, and the next one makes `.venv` anew. The compiled wheel lies in the user's cache, so that a second
clone or a deleted `.venv` doesn't compile again, and an interrupted compilation goes on where it stopped.
"""

import sys

if __name__ == "__main__":
    # Before anything that an older Python can't import; this file's syntax alone is kept old enough to get here.
    if sys.version_info < (3, 11):  # noqa: UP036
        have = "{} is {}.{}".format(sys.executable, *sys.version_info[:2])
        sys.exit(f"ForgeLM needs Python 3.11 or newer and {have}; name another one: make PYTHON=python3.12")
    # Python puts a script's own folder first, where a module of ours could shadow the standard library's.
    sys.path[0] = __file__.rpartition("/forgelm/")[0]

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from forgelm import bootstrap_cuda as cuda
from forgelm import bootstrap_engine as engine
from forgelm.bootstrap_mode import with_cuda
from forgelm.bootstrap_run import Progress, SetupError, environment, exclusive, fail, log_path, run_pip

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements-dev.lock"
LOCK_VARIABLE = "FORGELM_BUILD_LOCK"
"""Names another lock file of the clone: `requirements.lock` leaves out what only developing needs."""
STAMP = "forgelm-setup.json"
STAMP_FORMAT = 1
"""Raised when this file does something new that a finished `.venv` lacks."""
NO_PIP = "This python3 can't make a virtual environment with pip in it: sudo apt install python3-venv"


class Stamp(NamedTuple):
    """What a `.venv` was made from. `inputs` is empty while nothing there can be relied on."""

    format: int
    inputs: str
    python: str
    root: str
    wheel: str
    build: dict[str, str]
    lock: str = LOCK


def main() -> int:
    """Set the clone up and return the exit status; a failure is one line on stderr per thing to do."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        prepare(ROOT)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0


def prepare(root: Path) -> None:
    """Bring `root/.venv` up to date; returns within milliseconds when it is. Raises `SetupError`."""
    there = read_stamp(root)
    name = lock_name(root, there)
    lock = parse_lock((root / name).read_text())
    if engine.NAME not in lock:
        raise SetupError(f"{root / name} has no {engine.NAME}")
    wanted = wanted_stamp(root, lock, name, there)
    if is_current(root, wanted):
        return
    with exclusive(root, "another set-up of this clone"):
        if is_current(root, wanted):
            return
        if not engine.find_wheel(wanted.wheel):
            engine.find_compilers(wanted.build)
            # Before `.venv` remembers it: the next plain `make run` must not fail for the same reason.
            if with_cuda(wanted.build):
                cuda.check_compiler(wanted.build["CUDACXX"])
        make_venv(root, wanted, lock)
        install_packages(root, lock)
        # From here on the next run may keep what is there: a compilation that fails mustn't cost the packages too.
        write_stamp(root, wanted._replace(inputs="packages"))
        python = venv_python(root)
        wheel = engine.compiled_wheel(python, wanted.wheel, wanted.build, lock[engine.NAME])
        engine.install_wheel(python, wheel)
        # An nvcc of one's own comes with libraries of its own, perhaps of another CUDA.
        if with_cuda(wanted.build) and not wanted.build["CUDACXX"]:
            cuda.install_libraries(python)
        write_launcher(root)
        write_stamp(root, wanted)
        print("Ready: .venv/bin/forgelm", flush=True)


def lock_name(root: Path, there: Stamp | None) -> str:
    """Which lock file counts: the one asked for, else the one `.venv` was made from. Raises `SetupError`."""
    # One that a newer version no longer has isn't held against those who never named it.
    before = there.lock if there and (root / there.lock).is_file() else LOCK
    name = os.environ.get(LOCK_VARIABLE, "").strip() or before
    if not (root / name).is_file():
        raise SetupError(f"{LOCK_VARIABLE}={name}: {root} has no such file")
    return name


def parse_lock(text: str) -> dict[str, str]:
    """Name → its lines in the lock file: `name==version` and the hashes."""
    blocks: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==", line)
        if match:
            name = match[1].lower()
            blocks[name] = ""
        if name and line.strip() and not line.lstrip().startswith("#"):
            blocks[name] += f"{line}\n"
    return blocks


def wanted_stamp(root: Path, lock: dict[str, str], name: str, there: Stamp | None) -> Stamp:
    """The stamp of a finished `.venv` for these files (`name` is the lock's), this machine and this environment.

    Build variables that aren't set keep the value `.venv` was made with: after `CMAKE_ARGS=-DGGML_CUDA=on make setup`
    a plain `make run` must not fall back to the CPU.
    """
    inputs = hashlib.sha256((root / name).read_bytes() + (root / "pyproject.toml").read_bytes()).hexdigest()
    build = wanted_build(there.build if there else {})
    version = lock[engine.NAME].partition("==")[2].split(maxsplit=1)[0]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Stamp(STAMP_FORMAT, inputs, python, str(root), engine.wheel_key(version, build), build, name)


def wanted_build(remembered: dict[str, str]) -> dict[str, str]:
    """The build variables: those that are set, else those `.venv` was made with.

    Mode and CUDA are one choice: who asks for one anew doesn't mean what was asked of the other before.
    """
    choice = ("FORGELM_BUILD_MODE", "FORGELM_BUILD_CUDA")
    if any(name in os.environ for name in choice):
        remembered = {name: value for name, value in remembered.items() if name not in (*choice, "CUDACXX")}
    return {name: os.environ.get(name, remembered.get(name, "")).strip() for name in engine.BUILD_VARIABLES}


def read_stamp(root: Path) -> Stamp | None:
    """The stamp of the `.venv` that is there; None without a readable one."""
    try:
        return Stamp(**json.loads((root / ".venv" / STAMP).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(root: Path, stamp: Stamp) -> None:
    """Replace the stamp in one step: a crash leaves the old one or the new one."""
    new = root / ".venv" / f"{STAMP}.new"
    new.write_text(json.dumps(stamp._asdict()))
    new.replace(root / ".venv" / STAMP)


def is_current(root: Path, wanted: Stamp) -> bool:
    """Whether `.venv` is finished, is what `wanted` says, and still has its interpreter and launcher."""
    return read_stamp(root) == wanted and venv_python(root).exists() and launcher_path(root).exists()


def venv_python(root: Path) -> Path:
    """The interpreter of `.venv`."""
    return root / ".venv" / "bin" / "python"


def launcher_path(root: Path) -> Path:
    """The `forgelm` command of `.venv`."""
    return root / ".venv" / "bin" / "forgelm"


def make_venv(root: Path, wanted: Stamp, lock: dict[str, str]) -> None:
    """Leave a `.venv` with a working pip, marked unfinished; a sound one of the same Python is kept."""
    there = read_stamp(root)
    if there and there.inputs and (there.python, there.root) == (wanted.python, wanted.root) and has_pip(root):
        write_stamp(root, there._replace(inputs=""))
        return
    if (root / ".venv").exists():
        print("Making .venv anew: the one here is unfinished, moved or of another Python", flush=True)
    create_empty_venv(root / ".venv")
    write_stamp(root, wanted._replace(inputs=""))
    give_pip(root, lock)


def create_empty_venv(directory: Path) -> None:
    """A virtual environment without pip, in place of whatever is there. Raises `SetupError`."""
    try:
        import venv

        venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(directory)
    except ImportError:
        raise SetupError(NO_PIP) from None
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise SetupError(f"{directory} can't be made: {error}") from None


def give_pip(root: Path, lock: dict[str, str]) -> None:
    """Put pip into `.venv` in whichever way this machine offers. Raises `SetupError` naming the remedy.

    Debian ships Python without `ensurepip`, which is in python3-venv; another pip, uv or virtualenv will do.
    """
    python = str(venv_python(root))
    wanted = root / ".venv" / "requirements-pip.txt"
    wanted.write_text(lock.get("pip", "pip\n"))
    ways = (
        [python, "-m", "ensurepip", "--default-pip"],
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "-r", str(wanted)],
        ["uv", "pip", "install", "--no-deps", "--python", python, "-r", str(wanted)],
        ["virtualenv", "--python", sys.executable, str(root / ".venv")],
    )
    with log_path("venv").open("wb") as log:
        for way in ways:
            if shutil.which(way[0]):
                subprocess.run(way, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            if has_pip(root):
                return
    raise SetupError(NO_PIP)


def has_pip(root: Path) -> bool:
    """Whether `.venv` has a Python that runs and finds pip."""
    try:
        command = [str(venv_python(root)), "-c", "import pip"]
        return subprocess.run(command, env=environment(), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def install_packages(root: Path, lock: dict[str, str]) -> None:
    """Install what is locked, the engine excepted. pip comes first and alone, since it replaces itself."""
    rest = {name: block for name, block in lock.items() if name not in (engine.NAME, "pip")}
    if "pip" in lock:
        install_blocks(root, "pip", [lock["pip"]])
    if rest:
        install_blocks(root, "Packages", list(rest.values()))


def install_blocks(root: Path, label: str, blocks: list[str]) -> None:
    """Install these blocks of the lock file, their hashes checked. Raises `SetupError`."""
    requirements = root / ".venv" / "requirements.txt"
    requirements.write_text("".join(blocks))
    progress = Progress(label)
    seen: set[str] = set()

    def count(line: str) -> None:
        match = re.match(r"(?:Collecting|Requirement already satisfied:) (\S+)", line)
        if match:
            seen.add(match[1])
            progress.update(len(seen), len(blocks))

    log = log_path(label.lower())
    arguments = ["install", "--no-deps", "--require-hashes", "-r", str(requirements)]
    if run_pip(venv_python(root), arguments, log=log, progress=progress, on_line=count):
        fail("The packages can't be installed (the first set-up needs the network).", log)


def write_launcher(root: Path) -> None:
    """Make the clone importable in `.venv`, and `.venv/bin/forgelm` its command, as an editable install would.

    Two files written here instead, since they need no build backend, no network and no time.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (root / ".venv" / "lib" / version / "site-packages" / "forgelm.pth").write_text(f"{root}\n")
    # Shell and Python both read this: a "#!" line can't hold a path with spaces, or a long one.
    launcher_path(root).write_text(
        f"#!/bin/sh\n'''exec' \"{venv_python(root)}\" \"$0\" \"$@\"\n' '''\n"
        "import sys\n\nfrom forgelm.__main__ import main\n\nsys.exit(main())\n"
    )
    launcher_path(root).chmod(0o755)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends us as Ctrl-C does: children are stopped, and the stamp says unfinished."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
