"""Set-up of a clone, run as people run it: in a copy, with a home of its own, and mostly with a pip that only pretends.

The pretended pip is found through PYTHONPATH by the interpreter that runs set-up and puts itself into `.venv`. It
writes down what it was asked for; what it compiles is an empty wheel.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from forgelm import bootstrap, bootstrap_engine

ROOT = Path(__file__).parent.parent
VERSION = json.loads((ROOT / "containers" / "pins.json").read_text())["llama_cpp_python"]["version"]
WHEEL = f"llama_cpp_python-{VERSION}-py3-none-any.whl"
"""What real pip would compile."""
PRETENDED = "llama_cpp_python-1.0-py3-none-any.whl"
SOURCES = (
    *("__init__.py", "paths.py", "bootstrap.py", "bootstrap_engine.py", "bootstrap_run.py"),
    *("bootstrap_mode.py", "bootstrap_cuda.py"),
)

PIP = r"""
import json, os, pathlib, shutil, sys, tarfile, time
arguments = sys.argv[1:]
state = pathlib.Path(os.environ["FAKE_PIP"])
with (state / "asked").open("a") as asked:
    asked.write(json.dumps([arguments, os.environ.get("CMAKE_ARGS", "")]) + "\n")
if arguments[0] == "--python":
    venv = pathlib.Path(arguments[1]).parent.parent
    (site,) = venv.glob("lib/python*/site-packages")
    shutil.copytree(pathlib.Path(__file__).parent, site / "pip")
if arguments[0] == os.environ.get("FAKE_PIP_FAILS"):
    print("one.cpp:1: error: boom")
    print("the last line")
    sys.exit(1)
if arguments[0] == "download":
    work = pathlib.Path(arguments[arguments.index("-d") + 1])
    (state / "pyproject.toml").write_text("")
    with tarfile.open(work / "llama_cpp_python-1.0.tar.gz", "w:gz") as archive:
        archive.add(state / "pyproject.toml", "llama_cpp_python-1.0/pyproject.toml")
if arguments[0] == "wheel":
    for option in arguments:
        if option.startswith("--config-settings=build-dir="):
            pathlib.Path(option.split("=", 2)[2]).mkdir(exist_ok=True)
    print("  [1/4] /usr/bin/g++ one.cpp", flush=True)
    if os.environ.get("FAKE_PIP_HANGS"):
        (state / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    print("  [4/4] /usr/bin/g++ four.cpp")
    out = pathlib.Path(arguments[arguments.index("-w") + 1])
    out.mkdir(exist_ok=True)
    (out / "llama_cpp_python-1.0-py3-none-any.whl").write_bytes(b"")
"""
HIDDEN = "raise ImportError('hidden')\n"
HIDDEN_PIP = "import sys\nif sys.prefix == sys.base_prefix:\n    raise ImportError('hidden')\n"


class Clone:
    """A copy of what set-up needs, and how to run it there."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.root = directory
        self.home = home
        self.state = home / "pip-state"
        self.state.mkdir(parents=True, exist_ok=True)
        (directory / "forgelm").mkdir(parents=True)
        for name in (*SOURCES, "__main__.py"):
            shutil.copy(ROOT / "forgelm" / name, directory / "forgelm" / name)
        (directory / "forgelm" / "cli.py").write_text("import sys\n\ndef main():\n    print('hello', *sys.argv[1:])\n")
        shutil.copy(ROOT / "Makefile", directory)
        (directory / "containers").mkdir()
        shutil.copy(ROOT / "containers" / "pins.json", directory / "containers")
        (directory / "pyproject.toml").write_text("")
        lock = bootstrap.parse_lock((ROOT / "requirements-dev.lock").read_text())
        (directory / "requirements-dev.lock").write_text(lock["llama-cpp-python"] + lock["iniconfig"])

    def environment(self, **variables: str) -> dict[str, str]:
        """As little as possible of ours: the tests may run under an odd one."""
        other = ("PYTHONPATH", "XDG_CACHE_HOME", "VIRTUAL_ENV")
        ours = (*bootstrap_engine.BUILD_VARIABLES, bootstrap.LOCK_VARIABLE, *other)
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        return {**environment, "HOME": str(self.home), "FAKE_PIP": str(self.state), **variables}

    def hide(self, *names: str) -> str:
        """A PYTHONPATH under which these modules can't be imported and pip is the pretended one."""
        directory = self.home / ("without-" + "-".join(names))
        if not directory.exists():
            for name, content in {"pip": "", **dict.fromkeys(names, HIDDEN)}.items():
                (directory / name).mkdir(parents=True)
                (directory / name / "__init__.py").write_text(
                    HIDDEN_PIP if name in names and name == "pip" else content
                )
            (directory / "pip" / "__main__.py").write_text(PIP)
        return str(directory)

    def command(self) -> list[str]:
        # Not the virtual environment that the tests run in, whose pip would be found there.
        return [str(Path(sys.base_prefix) / "bin" / "python3"), str(self.root / "forgelm" / "bootstrap.py")]

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Set up with the pretended pip, unless a PYTHONPATH says otherwise."""
        environment = self.environment(**{"PYTHONPATH": self.hide("ensurepip"), **variables})
        return subprocess.run(self.command(), env=environment, capture_output=True, text=True, check=False)

    def asked(self, subcommand: str) -> list[tuple[list[str], str]]:
        """What the pretended pip was asked so far: arguments and CMAKE_ARGS of each `pip <subcommand>`."""
        path = self.state / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(arguments, cmake) for arguments, cmake in map(json.loads, lines) if arguments[0] == subcommand]

    def stamp(self) -> dict[str, Any]:
        stamp: dict[str, Any] = json.loads((self.root / ".venv" / bootstrap.STAMP).read_text())
        return stamp

    def wheels(self) -> list[Path]:
        return sorted((self.home / ".cache" / "forgelm" / "wheels").glob("*/*.whl"))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "a clone", tmp_path / "home")


def write_wheel(path: Path) -> None:
    path.parent.mkdir(parents=True)
    info = f"llama_cpp_python-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llama_cpp/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_a_clone_with_real_pip_a_cached_wheel_and_spaces_in_its_path(clone: Clone) -> None:
    """The one run that starts the real `ensurepip` and pip; without a package to fetch it needs no network."""
    lock = clone.root / "requirements-dev.lock"
    lock.write_text(bootstrap.parse_lock(lock.read_text())["llama-cpp-python"])
    key = bootstrap_engine.wheel_key(VERSION, dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, ""))
    write_wheel(clone.home / ".cache" / "forgelm" / "wheels" / key / WHEEL)
    first = clone.run(PYTHONPATH="", PATH="/nowhere")
    assert first.returncode == 0, first.stderr
    launcher = clone.root / ".venv" / "bin" / "forgelm"
    said = subprocess.run([launcher, "a b"], capture_output=True, text=True, check=True)
    assert said.stdout == "hello a b\n"
    probe = [clone.root / ".venv" / "bin" / "python", "-c", "import llama_cpp, forgelm, pip"]
    subprocess.run(probe, check=True, cwd="/")
    assert min(seconds_of_a_silent_run(clone) for _ in range(5)) < 0.5


def seconds_of_a_silent_run(clone: Clone) -> float:
    start = time.monotonic()
    result = clone.run(PYTHONPATH="")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    return time.monotonic() - start


def test_another_pip_does_where_ensurepip_is_absent(clone: Clone) -> None:
    """Debian's python3 has no ensurepip (it is in python3-venv), and a machine with pyenv hides that."""
    result = clone.run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("Ready: .venv/bin/forgelm\n")
    assert [arguments[2] for arguments, _ in clone.asked("--python")] == ["install"]


def test_without_any_pip_one_line_names_the_remedy_and_the_next_run_repairs(clone: Clone) -> None:
    # Neither uv nor virtualenv either; the compilers are found through CC and CXX.
    tools = {"PATH": str(clone.home), "CC": "/bin/sh", "CXX": "/bin/sh"}
    (clone.home / "make").symlink_to("/bin/sh")
    failed = clone.run(PYTHONPATH=clone.hide("ensurepip", "pip"), **tools)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"{bootstrap.NO_PIP}\n"
    assert "sudo apt install python3-venv" in failed.stderr
    assert not clone.asked("install")
    repaired = clone.run()
    assert repaired.returncode == 0, repaired.stderr
    assert "Making .venv anew" in repaired.stdout


def test_a_venv_of_unknown_make_is_made_anew(clone: Clone) -> None:
    (clone.root / ".venv" / "bin").mkdir(parents=True)
    (clone.root / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    assert clone.run().returncode == 0
    assert clone.stamp()["inputs"]


@pytest.mark.parametrize("missing", ["gcc", "g++", "make"])
def test_a_missing_tool_is_one_line_with_its_remedy(clone: Clone, missing: str) -> None:
    tools = clone.home / "bin"
    tools.mkdir()
    for tool in {"gcc", "g++", "make"} - {missing}:
        (tools / tool).symlink_to("/bin/sh")
    failed = clone.run(PATH=str(tools))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"{missing} is missing: sudo apt install {missing}\n"
    assert not (clone.root / ".venv").exists()


def test_llama_cpp_is_compiled_once_for_all_clones(clone: Clone, tmp_path: Path) -> None:
    assert clone.run().returncode == 0
    other = Clone(tmp_path / "other", clone.home)
    result = other.run(PATH="/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    assert "Compiling" not in result.stdout
    shutil.rmtree(other.root / ".venv")
    assert other.run().returncode == 0
    assert len(clone.asked("wheel")) == 1
    assert [path.name for path in clone.wheels()] == [PRETENDED]
    assert not list(clone.wheels()[0].parent.glob("work"))


def test_the_sdist_is_fetched_with_its_hash(clone: Clone) -> None:
    """The requirement lies in a file that is gone afterwards, so a fetch that fails shows it."""
    assert clone.run(FAKE_PIP_FAILS="download").returncode == 1
    ((arguments, _),) = clone.asked("download")
    assert "--require-hashes" in arguments
    locked = Path(arguments[arguments.index("-r") + 1]).read_text()
    assert locked == bootstrap.parse_lock((ROOT / "requirements-dev.lock").read_text())["llama-cpp-python"]


def test_a_failed_compilation_shows_why_and_starts_afresh(clone: Clone) -> None:
    failed = clone.run(FAKE_PIP_FAILS="wheel")
    assert failed.returncode == 1
    assert "error: boom" in failed.stderr
    assert re.search(r"^llama.cpp didn't compile. The full log: .*/build.log$", failed.stderr, re.MULTILINE)
    assert clone.wheels() == []
    assert clone.run().returncode == 0
    # The sources were fetched and checked the first time, and `.venv` had all else.
    assert len(clone.asked("download")) == 1
    assert len(clone.asked("--python")) == 1


def hanging(clone: Clone) -> subprocess.Popen[str]:
    """A set-up in the middle of its compilation."""
    environment = clone.environment(PYTHONPATH=clone.hide("ensurepip"), FAKE_PIP_HANGS="1")
    process = subprocess.Popen(clone.command(), env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (clone.state / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compilation_leaves_no_process_and_is_resumed(clone: Clone, number: signal.Signals) -> None:
    process = hanging(clone)
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == "Stopped; the next run goes on from here.\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((clone.state / "pid").read_text()), 0)
    assert clone.run().returncode == 0
    assert len(clone.asked("download")) == 1
    first, second = (arguments for arguments, _ in clone.asked("wheel"))
    assert first == second


def test_build_variables_hold_until_others_are_given(clone: Clone) -> None:
    """After a build for the GPU a plain `make run` must not fall back to the CPU."""
    assert clone.run(CMAKE_ARGS="-DGGML_CUDA=on").returncode == 0
    assert [cmake for _, cmake in clone.asked("wheel")] == ["-DLLAVA_BUILD=OFF -DGGML_CUDA=on"]
    gpu = clone.stamp()["wheel"]
    (clone.root / "pyproject.toml").write_text("# changed")
    assert clone.run().returncode == 0
    assert clone.stamp()["wheel"] == gpu
    assert clone.run(CMAKE_ARGS="").returncode == 0
    assert clone.stamp()["wheel"] != gpu
    assert [cmake for _, cmake in clone.asked("wheel")][1:] == ["-DLLAVA_BUILD=OFF"]
    assert len(clone.wheels()) == 2


def test_a_mode_or_cuda_given_anew_replaces_what_was_chosen_of_both(clone: Clone) -> None:
    """They exclude each other in part: a CUDA build is portable, and there must be a way back from it."""
    chosen = [
        clone.run(FORGELM_BUILD_MODE="native"),
        clone.run(FORGELM_BUILD_CUDA="1", CUDACXX=shutil.which("true") or ""),
        clone.run(),
        clone.run(FORGELM_BUILD_MODE="native"),
    ]
    assert [result.returncode for result in chosen] == [0, 0, 0, 0], [result.stderr for result in chosen]
    assert ["-DGGML_CUDA=ON" in cmake for _, cmake in clone.asked("wheel")] == [False, True]
    assert clone.stamp()["build"]["FORGELM_BUILD_CUDA"] == ""
    both = clone.run(FORGELM_BUILD_MODE="native", FORGELM_BUILD_CUDA="1")
    assert both.stderr.startswith("MODE=native and CUDA don't go together")


def test_another_lock_leaves_out_what_only_developing_needs_and_holds_until_one_is_given(clone: Clone) -> None:
    """An image has no use for pytest; a later run there must not bring it in."""
    (clone.root / "requirements.lock").write_text(
        bootstrap.parse_lock((ROOT / "requirements.lock").read_text())["llama-cpp-python"]
    )
    assert clone.run(FORGELM_BUILD_LOCK="requirements.lock").returncode == 0
    installed = [arguments for arguments, _ in clone.asked("install")]
    assert [Path(arguments[-1]).suffix for arguments in installed] == [".whl"], "the engine alone"
    silent = clone.run()
    assert (silent.returncode, silent.stdout) == (0, "")
    assert clone.run(FORGELM_BUILD_LOCK="requirements-dev.lock").returncode == 0
    assert len(clone.asked("install")) == len(installed) + 2
    assert len(clone.asked("wheel")) == 1


def test_a_venv_of_an_older_set_up_is_kept(clone: Clone) -> None:
    """Its stamp names no lock file."""
    assert clone.run().returncode == 0
    stamp = clone.stamp()
    del stamp["lock"]
    (clone.root / ".venv" / bootstrap.STAMP).write_text(json.dumps(stamp))
    again = clone.run()
    assert (again.returncode, again.stdout) == (0, "")


def test_a_lock_that_is_gone_is_not_asked_for_by_the_venv_made_from_it(clone: Clone) -> None:
    (clone.root / "other.lock").write_text((clone.root / "requirements-dev.lock").read_text())
    assert clone.run(FORGELM_BUILD_LOCK="other.lock").returncode == 0
    (clone.root / "other.lock").unlink()
    result = clone.run()
    assert result.returncode == 0, result.stderr
    assert clone.stamp()["lock"] == "requirements-dev.lock"


def test_a_lock_without_the_engine_is_one_line(clone: Clone) -> None:
    (clone.root / "empty.lock").write_text("# nothing\n")
    failed = clone.run(FORGELM_BUILD_LOCK="empty.lock")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"{clone.root / 'empty.lock'} has no llama-cpp-python\n"


def test_a_lock_that_there_is_not_is_one_line(clone: Clone) -> None:
    failed = clone.run(FORGELM_BUILD_LOCK="other.lock")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"FORGELM_BUILD_LOCK=other.lock: {clone.root} has no such file\n"


def test_a_changed_pyproject_updates_the_venv_in_place(clone: Clone) -> None:
    assert clone.run().returncode == 0
    (clone.root / ".venv" / "mine").write_text("")
    (clone.root / "pyproject.toml").write_text("# changed")
    assert clone.run().returncode == 0
    assert (clone.root / ".venv" / "mine").exists()
    assert len(clone.asked("wheel")) == 1


def test_a_moved_clone_is_set_up_again(clone: Clone) -> None:
    """The paths in a virtual environment are absolute."""
    assert clone.run().returncode == 0
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert "Making .venv anew" in clone.run().stdout
    assert str(clone.root) in (clone.root / ".venv" / "bin" / "forgelm").read_text()


def test_packages_that_cannot_be_installed(clone: Clone) -> None:
    failed = clone.run(FAKE_PIP_FAILS="install")
    assert failed.returncode == 1
    assert "needs the network" in failed.stderr.splitlines()[-1]
    ((arguments, _),) = clone.asked("install")
    assert "--require-hashes" in arguments


def test_a_second_set_up_waits_for_the_first(clone: Clone) -> None:
    handle = os.open(clone.root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    environment = clone.environment(PYTHONPATH=clone.hide("ensurepip"))
    process = subprocess.Popen(clone.command(), env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "Waiting for another set-up of this clone to finish\n"
    assert process.poll() is None
    os.close(handle)
    output, _ = process.communicate(timeout=20)
    assert output.endswith("Ready: .venv/bin/forgelm\n")


# The Makefile.


def make(clone: Clone, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = clone.environment(PYTHONPATH=clone.hide("ensurepip"), **variables)
    command = ["make", "-C", str(clone.root), "--no-print-directory", f"PYTHON={clone.command()[0]}", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_make_alone_lists_the_targets(clone: Clone) -> None:
    result = make(clone)
    assert (result.returncode, result.stderr) == (0, "")
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) - {"help"}
    assert {line.split()[1] for line in result.stdout.splitlines()} == targets


def test_make_without_python_is_one_line(clone: Clone) -> None:
    result = make(clone, "setup", "PYTHON=no-such-python")
    assert result.returncode != 0
    assert result.stderr.splitlines()[0] == "no-such-python is missing: sudo apt install python3"


def test_make_install_links_the_command_and_uninstall_takes_it_away(clone: Clone) -> None:
    clone.root = clone.root.rename(clone.root.with_name("clone"))
    link = clone.home / ".local" / "bin" / "forgelm"
    installed = make(clone, "install")
    assert installed.returncode == 0, installed.stderr
    assert "isn't on PATH yet" in installed.stdout
    assert subprocess.run([link, "you"], capture_output=True, text=True, check=True).stdout == "hello you\n"
    again = make(clone, "install", PATH=f"{link.parent}:{os.environ['PATH']}")
    assert again.stdout == f"Linked {link}\n"
    assert make(clone, "uninstall").returncode == 0
    assert not link.is_symlink()
    link.write_text("somebody's own")
    assert make(clone, "install").returncode != 0
    assert make(clone, "uninstall").returncode == 0
    assert link.read_text() == "somebody's own"
