"""The command line from outside: help, versions, exit codes, pipes, and completion in real shells."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forgelm import __version__, cli
from forgelm.llama.lib import BINDINGS, COMMIT
from tests.program import FORGELM, PATIENCE, Terminal, environment, forgelm, start


def one_line(text: str) -> str:
    """`text`, which must be a single line of ours."""
    assert text.startswith("forgelm: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text


# ---- help and versions -----------------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    result = forgelm("--help")
    assert result.returncode == 0
    for name, entry in cli.COMMANDS.items():
        assert f" {name} " in result.stdout
        assert entry.summary in result.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = forgelm(name, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"forgelm {name}" in result.stdout


def test_without_a_command_the_help_goes_to_stderr() -> None:
    result = forgelm()
    assert (result.returncode, result.stdout) == (2, "")
    assert "doctor" in result.stderr


def test_version_names_all_three() -> None:
    lines = forgelm("version").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["forgelm", __version__],
        ["llama-cpp-python", BINDINGS],
        ["llama.cpp", COMMIT],
    ]


def test_the_version_flag() -> None:
    assert forgelm("--version").stdout == f"forgelm {__version__}\n"


HEAVY = (
    "litestar",
    "uvicorn",
    "httpx",
    "numpy",
    "jinja2",
    "prometheus_client",
    "psutil",
    "pynvml",
    "llama_cpp._internals",
)


@pytest.mark.parametrize("arguments", [["version"], ["paths"], ["--help"], ["completion", "fish"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str]) -> None:
    """Why they are quick; a limit in seconds would measure the machine's other load."""
    script = (
        "import sys; from forgelm.cli import run; code = run(sys.argv[2:]); "
        "print(*(set(sys.argv[1].split()) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, " ".join(HEAVY), *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert result.stderr.split() == []


def test_paths_follow_the_environment(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "FORGELM_MODELS": str(tmp_path / "m"), "XDG_CACHE_HOME": "relative"}
    found = dict(line.rsplit("  ", 1) for line in forgelm("paths", env=env).stdout.splitlines())
    places = {name.strip(): path for name, path in found.items()}
    assert places["config"] == str(tmp_path / "c" / "forgelm")
    assert places["models"] == str(tmp_path / "m")
    assert places["cache"].endswith("/.cache/forgelm")
    assert not any(tmp_path.iterdir())


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "serv"),
        (["--nope"], "--nope"),
        (["--port", "9000"], "options come after a command, as in `forgelm serve --port 8080`"),
        (["chat", "--nope"], "forgelm chat --help"),
        (["chat", "--temperature", "7", "hi"], "--temperature"),
        (["--log-level", "loud", "paths"], "FORGELM_LOG_LEVEL"),
        (["completion", "tcsh"], "tcsh"),
        (["chat"], "the prompt is empty"),
        (["serve", "--profile", "nope"], "no profile named 'nope'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], said: str) -> None:
    result = forgelm(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in one_line(result.stderr)


def test_the_log_level_comes_from_the_environment_too() -> None:
    assert forgelm("paths", env={"FORGELM_LOG_LEVEL": "loud"}).returncode == 2
    assert forgelm("--log-level", "error", "paths", env={"FORGELM_LOG_LEVEL": "loud"}).returncode == 0


def test_an_expected_failure_is_one_line_and_1(tmp_path: Path) -> None:
    result = forgelm("serve", "--profile", "starter", "--model", str(tmp_path / "none.gguf"))
    assert result.returncode == 1
    assert "none.gguf" in one_line(result.stderr)


def test_a_reader_that_leaves_is_no_error() -> None:
    """`forgelm completion bash | head -1` says nothing; the code is the one shells report for SIGPIPE."""
    with start("completion", "bash", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait() == cli.BROKEN_PIPE


@pytest.mark.parametrize("arguments", [["pull", "nobody"], ["--wrong"], ["pull", "starter", "--offline"]])
def test_a_reader_that_leaves_both_streams_is_no_error(arguments: list[str], tmp_path: Path) -> None:
    """`forgelm pull … 2>&1 | true` ended with Python's own 120."""
    ours, theirs = os.pipe()
    os.close(ours)
    with start(*arguments, stdout=theirs, stderr=theirs, cwd=tmp_path) as process:
        os.close(theirs)
        assert process.wait() == cli.BROKEN_PIPE


def test_an_interruption_while_modules_are_loaded_is_silent(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    with start("version", stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == -signal.SIGINT


def test_interruptions_later_are_handled() -> None:
    """As they were before modules were loaded, where the program may also have been told to be deaf to them."""
    for before in ("signal.default_int_handler", "signal.SIG_IGN"):
        code = f"import signal; signal.signal(signal.SIGINT, {before}); import forgelm.__main__ as m, forgelm.cli as c"
        code += f"; c.main = lambda: print(signal.getsignal(signal.SIGINT) == {before}); m.main()"
        assert subprocess.check_output([sys.executable, "-c", code], text=True, env=environment()) == "True\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full, start("paths", stdout=full, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert "No space left" in one_line(process.stderr.read())
        assert process.wait() == 1


# ---- completion ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shell_path(tmp_path: Path) -> str:
    """A PATH where `forgelm` is this tree's."""
    program = tmp_path / "bin" / "forgelm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(FORGELM)} "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{environment()['PATH']}"


needs = {name: pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name} here") for name in ("zsh", "fish")}


def bash(shell_path: str) -> Terminal:
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], env={"PATH": shell_path, "PS1": "% "})
    terminal.type('eval "$(forgelm completion bash)"; echo rea""dy\r')
    terminal.expect("ready")
    return terminal


def zsh(shell_path: str) -> Terminal:
    terminal = Terminal(["zsh", "-f", "-i"], env={"PATH": shell_path, "PS1": "% "})
    terminal.type('autoload -U compinit; compinit -D -u; eval "$(forgelm completion zsh)"; echo rea""dy\r')
    terminal.expect("ready")
    return terminal


@pytest.mark.parametrize("shell", [bash, pytest.param(zsh, marks=needs["zsh"])])
def test_tab_completes_commands_and_options(shell_path: str, shell: Callable[[str], Terminal]) -> None:
    """Real keys in a real shell: a command, an option of it, and a choice."""
    with shell(shell_path) as terminal:
        terminal.type("forgelm doc\t")
        terminal.expect("forgelm doctor")
        terminal.type("--js\t")
        terminal.expect("--json")
        terminal.type("\x15forgelm completion fi\t")
        terminal.expect("completion fish")


@needs["fish"]
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("forgelm doc", "doctor"), ("forgelm doctor --js", "--json"), ("forgelm completion fi", "fish")],
)
def test_fish_completes(shell_path: str, tmp_path: Path, typed: str, offered: str) -> None:
    """`complete --do-complete` is what fish itself runs on Tab."""
    result = subprocess.run(
        ["fish", "--no-config", "-c", f"forgelm completion fish | source; complete --do-complete '{typed}'"],
        capture_output=True,
        text=True,
        env=environment(PATH=shell_path, HOME=str(tmp_path)),
        check=True,
    )
    assert offered in [line.split("\t")[0].split(",")[-1] for line in result.stdout.splitlines()]


def test_the_shells_ask_for_this_variable() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert cli.COMPLETE_VARIABLE in forgelm("completion", shell).stdout
