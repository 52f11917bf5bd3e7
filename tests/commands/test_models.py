"""`forgelm models`, `rm` and `verify`: what is here, and that it stays so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.desk import Desk
from tests.program import FORGELM, Terminal, environment

pytestmark = pytest.mark.server

REPO = "owner/tiny-GGUF"


@pytest.fixture
def stocked(desk: Desk, qwen35_path: Path, starter_path: Path) -> Desk:
    """A model of the hub's, which a profile is for, and one that somebody put there."""
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": qwen35_path})
    desk.shelf.profile("mine", file="m-Q4_K_M.gguf", repo=REPO, license="mit")
    desk.good("pull", "mine")
    desk.shelf.put("by-hand.gguf", starter_path)
    return desk


def listed(desk: Desk) -> dict[str, Any]:
    """Id → model, as the JSON has it."""
    return {model["id"]: model for model in json.loads(desk.good("models", "--json").stdout)["models"]}


# --- models -----------------------------------------------------------------------------------------------------------


def test_the_table(stocked: Desk) -> None:
    (stocked.shelf.models / "broken.gguf").write_bytes(b"<html>")
    result = stocked.good("models")
    assert result.stderr == ""
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["model"] == ["size", "quant", "context", "from", "last", "used"]
    assert rows[f"{REPO}:Q4_K_M"] == ["16.4", "MB", "Q4_K_M", "32,768", "MTP,", "profile", "mine", "hub", "never"]
    assert rows["by-hand"] == ["98.4", "MB", "Q4_1", "8,192", "local", "never"]
    assert "broken can't be served: " in result.stdout
    assert "\x1b" not in result.stdout


def test_a_narrow_terminal_gets_a_paragraph_for_each(stocked: Desk) -> None:
    with stocked.terminal("models", COLUMNS="50") as terminal:
        output, code = terminal.finish()
    assert code == 0
    lines = [line.rstrip() for line in output.split("\n")]
    assert f"{REPO}:Q4_K_M" in lines
    assert "  98.4 MB, Q4_1, context 8,192, from local, last" in lines
    assert max(map(len, lines)) <= 50


def test_json(stocked: Desk) -> None:
    models = listed(stocked)
    assert set(models) == {f"{REPO}:Q4_K_M", "by-hand"}
    ours = models[f"{REPO}:Q4_K_M"]
    assert (ours["origin"], ours["repo"], ours["profile"], ours["license"]) == ("hub", REPO, "mine", "mit")
    assert ours["mtp_head"] == ours["path"] == str(stocked.place(REPO, "m-Q4_K_M.gguf"))


def test_nothing_is_here(desk: Desk) -> None:
    result = desk.good("models")
    assert result.stdout == ""
    assert "forgelm pull starter" in result.stderr


HEAVY = "huggingface_hub httpx2 urllib3 llama_cpp litestar numpy jinja2"


def test_listing_loads_neither_the_hub_nor_llama_cpp(stocked: Desk) -> None:
    """Why it is quick, on a Tab too; a limit in seconds would measure the machine's other load."""
    script = (
        "import sys; from forgelm.cli import run; code = run(sys.argv[2:]); "
        "print(*(set(sys.argv[1].split()) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    stocked.good("models")
    for arguments in (["models"], ["models", "--json"], ["verify"]):
        result = subprocess.run(
            [sys.executable, "-c", script, HEAVY, *arguments],
            capture_output=True,
            text=True,
            env=environment(**stocked.variables),
            check=True,
        )
        assert result.stderr.splitlines()[-1] == ""


def test_names_complete(stocked: Desk) -> None:
    def offered(*words: str) -> list[str]:
        variables = {"_FORGELM_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("forgelm", *words))}
        result = stocked.good(COMP_CWORD=str(len(words)), **variables)
        return result.stdout.split()

    assert offered("rm", "own") == [f"plain,{REPO}:Q4_K_M"]
    assert offered("verify", "by-hand", "OWN") == [f"plain,{REPO}:Q4_K_M"]
    assert offered("serve", "--model", "by") == ["plain,by-hand"]
    assert offered("serve", "--model", "./") == ["file,./"]
    (stocked.shelf.root / "xdg-state" / "forgelm").rename(stocked.shelf.root / "gone")
    (stocked.shelf.root / "xdg-state" / "forgelm").write_bytes(b"a file where the index should be")
    assert offered("rm", "nope") == []


def test_bash_completes_behind_a_colon(stocked: Desk, tmp_path: Path) -> None:
    """Bash ends words at colons. Real keys in a real shell."""
    stocked.shelf.put(f"{REPO}/m-Q8_0.gguf", stocked.place(REPO, "m-Q4_K_M.gguf"))
    origin = stocked.place(REPO, ".m-Q4_K_M.gguf.origin.json")
    origin.with_name(".m-Q8_0.gguf.origin.json").write_bytes(origin.read_bytes())
    assert {f"{REPO}:Q8_0", f"{REPO}:Q4_K_M"} <= set(listed(stocked))
    program = tmp_path / "bin" / "forgelm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(FORGELM)} "$@"\n')
    program.chmod(0o755)
    variables = {**stocked.variables, "PATH": f"{program.parent}:{environment()['PATH']}", "PS1": "% "}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], env=variables) as bash:
        bash.type('eval "$(forgelm completion bash)"; echo rea""dy\r')
        bash.expect("ready")
        bash.type("forgelm verify own\t")
        bash.expect("er/tiny-GGUF:Q")
        bash.type("8\t")
        bash.expect("8_0 ")
        bash.type("by\t")
        bash.expect("by-hand")


# --- rm ---------------------------------------------------------------------------------------------------------------


def test_rm_deletes_without_asking_where_nobody_can_answer(stocked: Desk) -> None:
    result = stocked.good("rm", f"{REPO}:Q4_K_M")
    assert (result.stdout, result.stderr) == ("", f"{REPO}:Q4_K_M is deleted\n")
    assert not (stocked.shelf.models / "owner").exists()
    assert set(listed(stocked)) == {"by-hand"}


def test_rm_asks_on_a_terminal(stocked: Desk) -> None:
    path = stocked.shelf.models / "by-hand.gguf"
    with stocked.terminal("rm", "by-hand") as terminal:
        assert "Delete by-hand (98.4 MB) at " in terminal.expect("[y/N]")
        terminal.type("\r")
        _, code = terminal.finish()
    assert (code, path.exists()) == (1, True)
    with stocked.terminal("rm", "by-hand", "--yes") as terminal:
        output, code = terminal.finish()
    assert (code, path.exists(), "by-hand is deleted" in output) == (0, False, True)


def test_rm_of_an_imported_model_leaves_its_file(desk: Desk, tiny: Path) -> None:
    desk.good("import", str(tiny))
    with desk.terminal("rm", "tiny") as terminal:
        assert "Forget tiny? Its file stays at " in terminal.expect("[y/N]")
        terminal.type("y\r")
        output, code = terminal.finish()
    assert (code, tiny.exists()) == (0, True)
    assert "tiny is forgotten; its file stays at " in output
    assert listed(desk) == {}


def test_an_imported_model_that_is_gone(desk: Desk, tiny: Path) -> None:
    desk.good("import", str(tiny))
    tiny.rename(tiny.with_name("elsewhere"))
    assert f"not there at the moment: {tiny}" in desk.good("models").stderr
    with desk.terminal("rm", str(tiny)) as terminal:
        terminal.expect("which isn't there at the moment? [y/N]")
        terminal.type("y\r")
        _, code = terminal.finish()
    assert code == 0
    assert str(tiny) not in desk.good("models").stderr


def test_unknown_names(stocked: Desk) -> None:
    for command in ("rm", "verify"):
        assert f"did you mean {REPO}:Q4_K_M" in stocked.refused(command, "owner/tinny-GGUF:Q4_K_M")


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_tells_right_from_wrong_and_unknown(stocked: Desk) -> None:
    result = stocked.good("verify")
    verdicts = dict(line.split(maxsplit=1)[::-1] for line in result.stdout.splitlines())
    assert verdicts.pop(f"{REPO}:Q4_K_M") == "right"
    assert list(verdicts.values()) == ["unknown"]
    assert next(iter(verdicts)).startswith("by-hand: nobody says what its sha256 should be; it is ")
    assert f"{REPO}:Q4_K_M 16.4 MB" in result.stderr
    path = stocked.place(REPO, "m-Q4_K_M.gguf")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    result = stocked.run("verify", f"{REPO}:Q4_K_M")
    assert result.returncode == 1
    assert result.stdout.startswith(f"wrong    {REPO}:Q4_K_M: it is damaged: its sha256 is ")
    assert f"{REPO}:Q4_K_M can't be served: it is damaged" in stocked.good("models").stdout


def test_verify_finds_what_changed_by_itself(desk: Desk, starter_path: Path) -> None:
    """A disk that loses bits changes neither a file's size nor its time."""
    path = desk.shelf.models / "mine.gguf"
    path.write_bytes(starter_path.read_bytes())
    assert desk.good("verify").stdout.startswith("unknown  mine: ")
    assert desk.good("verify").stdout == "right    mine\n"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xa5" if starter_path.read_bytes()[-1] != 0xA5 else b"\x5a")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = desk.run("verify")
    assert (result.returncode, result.stdout[:14]) == (1, "wrong    mine:")


def test_verify_without_models(desk: Desk) -> None:
    assert "there are no models to verify" in desk.good("verify").stderr


# --- what a disk refuses ----------------------------------------------------------------------------------------------


def test_a_file_where_the_state_should_be_is_one_line(desk: Desk, tmp_path: Path, tiny: Path) -> None:
    state = tmp_path / "state"
    state.write_bytes(b"")
    said = desk.refused("import", str(tiny), XDG_STATE_HOME=str(state))
    assert str(state) in said


def test_a_broken_pipe_is_still_none_of_the_disks(stocked: Desk) -> None:
    """What reads our output may leave; that has no file's name and is no failure of a disk."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [*FORGELM, "models"]
    result = subprocess.run(
        command, stdout=theirs, stderr=subprocess.PIPE, env=environment(**stocked.variables), check=False
    )
    os.close(theirs)
    assert (result.returncode, result.stderr) == (141, b"")
