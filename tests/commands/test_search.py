"""`forgelm search`: what the hub has, and whether it fits, for people and for programs."""

import json
from pathlib import Path

import click
import pytest

from forgelm.commands.search import SHOWN, most_wanted
from forgelm.ipc.registry import FitFact, HubFile
from tests.commands.desk import Desk

pytestmark = pytest.mark.server

REPO = "owner/tiny-GGUF"


@pytest.fixture
def stocked(desk: Desk, tiny: Path) -> Desk:
    """A hub with three repositories."""
    files = {"tiny-Q4_K_M.gguf": tiny, "tiny-Q8_0.gguf": tiny, "mmproj-F16.gguf": b"x"}
    desk.hub.add(REPO, files, downloads=12_345, likes=1)
    desk.hub.add("other/tiny-chat-GGUF", {"chat.gguf": tiny}, downloads=7, likes=9, license="llama3.2")
    desk.hub.add("other/gated-tiny-GGUF", {"g-Q4_K_M.gguf": tiny}, downloads=1, gated="manual")
    return desk


def test_the_table(stocked: Desk) -> None:
    stocked.good("pull", REPO)
    result = stocked.good("search", "tiny")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{REPO}  12,345 downloads, apache-2.0"
    size = f"{stocked.place(REPO, 'tiny-Q4_K_M.gguf').stat().st_size / 1e6:.1f}"
    assert lines[1].split()[:5] == ["Q4_K_M", size, "MB", "here", "fits:"]
    assert lines[2].split()[:4] == ["Q8_0", size, "MB", "fits:"]
    assert lines[1].endswith(", by its size")
    assert lines[3] == ""
    assert lines[4] == "other/tiny-chat-GGUF  7 downloads, llama3.2"
    assert lines[5].split()[0] == "chat.gguf"
    assert lines[7].startswith("other/gated-tiny-GGUF  1 downloads, apache-2.0, gated")
    assert "mmproj" not in result.stdout
    assert "\x1b" not in result.stdout
    assert "forgelm pull OWNER/REPOSITORY:QUANT" in result.stderr


def test_what_strangers_wrote_stays_in_its_line(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"a\nb\tc.gguf": tiny, "d.gguf": tiny}, license="mit\nowner/other  9 downloads")
    lines = desk.good("search", "tiny").stdout.splitlines()
    assert lines[0] == f"{REPO}  0 downloads, mit owner/other  9 downloads"
    assert [line.split()[0] for line in lines[1:]] == ["a", "d.gguf"]
    assert lines[1].startswith("  a b c.gguf ")


def test_a_narrow_terminal(stocked: Desk) -> None:
    with stocked.terminal("search", "tiny", COLUMNS="50", NO_COLOR="1") as terminal:
        output, code = terminal.finish()
    assert code == 0
    assert max(len(line.rstrip()) for line in click.unstyle(output).split("\n")) <= 50
    assert REPO in output
    assert "Q4_K_M" in output


def test_json(stocked: Desk) -> None:
    found = json.loads(stocked.good("search", "tiny", "--json").stdout)["models"]
    assert [model["repo"] for model in found] == [REPO, "other/tiny-chat-GGUF", "other/gated-tiny-GGUF"]
    assert [(file["quant"], file["here"], file["fit"]["fits"]) for file in found[0]["files"]] == [
        ("Q4_K_M", False, True),
        ("Q8_0", False, True),
    ]
    assert found[0]["companions"] == ["mmproj-F16.gguf"]
    assert found[2]["gated"] is True


def test_what_is_looked_for(stocked: Desk) -> None:
    def repos(*arguments: str) -> list[str]:
        return [model["repo"] for model in json.loads(stocked.good("search", *arguments, "--json").stdout)["models"]]

    assert repos("--author", "other") == ["other/tiny-chat-GGUF", "other/gated-tiny-GGUF"]
    assert repos("tiny", "--limit", "1", "--sort", "likes") == ["other/tiny-chat-GGUF"]
    assert repos("nothing") == []
    assert "no repository with GGUF files is called so" in stocked.good("search", "nothing").stderr


def test_what_fails(stocked: Desk) -> None:
    assert "offline" in stocked.refused("search", "tiny", "--offline")
    assert stocked.hub.log.requests() == []
    stocked.hub.faults.fail(403, origin="hub", path="/api/models")
    assert "refuses the search" in stocked.refused("search", "tiny")
    assert stocked.run("search", "tiny", "--limit", "51").returncode == 2


# --- which files of many ----------------------------------------------------------------------------------------------


def file(quant: str, size: int, *, here: bool = False, fits: bool = True) -> HubFile:
    return HubFile(f"m-{quant}.gguf", quant, size, 1, here, FitFact(fits, "", "size"))


def test_of_many_files_those_are_shown_that_people_want() -> None:
    """What is here, the usual ones, then the largest that fit; by size."""
    files = [file(f"IQ{number}_M", number) for number in range(1, 8)]
    files += [file("BF16", 100, fits=False), file("Q4_K_M", 40), file("Q8_0", 80), file("TQ1_0", 1, here=True)]
    found = [each.quant for each in most_wanted(files)]
    assert len(found) == SHOWN
    assert found == ["TQ1_0", "IQ5_M", "IQ6_M", "IQ7_M", "Q4_K_M", "Q8_0"]


def test_of_many_files_in_the_table(desk: Desk, tiny: Path) -> None:
    names = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
    desk.hub.add(REPO, {f"m-{name}.gguf": tiny for name in names})
    desk.hub.add("other/tiny", {"m-Q8_0.gguf": tiny})
    assert f"and 3 more: `forgelm search {REPO}` shows all" in desk.good("search", "tiny").stdout
    shown = desk.good("search", REPO).stdout
    assert all(name in shown for name in names)
