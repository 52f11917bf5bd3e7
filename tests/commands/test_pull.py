"""`forgelm pull`: what it chooses and says, what it asks, and that it can be stopped at any time."""

import hashlib
import signal
import time
from pathlib import Path

import pytest

from tests.commands.desk import Desk, last_words
from tests.fit.sparse import Dense, Kind, write_dense
from tests.registry.files import write_tiny
from tests.registry.hub.catalog import Content

pytestmark = pytest.mark.server

REPO = "owner/tiny-GGUF"
MORE = 8 << 20
"""Bytes beside a file's own: headers that two commands read, and what was on its way when a download stopped."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- what is fetched --------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub(desk: Desk, qwen35_path: Path, tiny: Path) -> None:
    model = desk.hub.add(REPO, {"m-Q4_K_M.gguf": qwen35_path, "m-Q8_0.gguf": tiny, "mmproj-F16.gguf": b"x"})
    result = desk.good("pull", REPO)
    path = desk.place(REPO, "m-Q4_K_M.gguf")
    assert result.stdout == f"{path}\n"
    assert sha256(path) == sha256(qwen35_path)
    said = result.stderr.splitlines()
    assert said[0] == f"{REPO} at {model.commit[:8]}: m-Q4_K_M.gguf, 16.4 MB (the usual choice)"
    assert said[1] == "qwen35, 14M parameters, context 32,768, chat template, next-token head"
    assert said[2].startswith("fits: ")
    assert said[3] == "licence: apache-2.0"
    assert said[4] == "Fetching 16.4 MB"
    assert said[-1] == f"serve it with `forgelm serve --model {REPO}:Q4_K_M`"
    sent = desk.sent(model.files["m-Q4_K_M.gguf"])
    again = desk.good("pull", f"{REPO}:Q4_K_M")
    assert again.stdout == result.stdout
    assert "it is here already" in again.stderr
    assert "Fetching" not in again.stderr
    assert desk.sent(model.files["m-Q4_K_M.gguf"]) == sent


def test_why_it_is_the_second_choice(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"m-Q8_0.gguf": tiny, "m-Q2_K.gguf": tiny})
    assert "(the second choice: Q4_K_M isn't there or doesn't fit)" in desk.good("pull", REPO).stderr


def test_a_licence_cannot_look_like_lines_of_ours(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny}, license="mit\nfits:\u2028everything\r\x1b[2J\u202e")
    said = desk.good("pull", REPO, "--yes").stderr
    assert "\nlicence: mit fits: everything [2J\n" in said


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ([f"{REPO}:Q8_0"], "m-Q8_0.gguf"),
        ([REPO, "--quant", "q8_0"], "m-Q8_0.gguf"),
        ([f"{REPO}/folder/m-BF16.gguf"], "folder/m-BF16.gguf"),
        ([f"https://huggingface.co/{REPO}/blob/main/folder/m-BF16.gguf"], "folder/m-BF16.gguf"),
    ],
)
def test_names_of_a_file(desk: Desk, tiny: Path, arguments: list[str], file: str) -> None:
    desk.hub.add(REPO, dict.fromkeys(("m-Q4_K_M.gguf", "m-Q8_0.gguf", "folder/m-BF16.gguf"), tiny))
    result = desk.good("pull", *arguments)
    assert result.stdout == f"{desk.place(REPO, file)}\n"
    assert "(as asked for)" in result.stderr


def test_an_older_revision(desk: Desk, tiny: Path, tmp_path: Path) -> None:
    model = desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny})
    first = model.commit
    desk.hub.catalog.change(REPO, "m-Q4_K_M.gguf", write_tiny(tmp_path / "newer.gguf", values={"general.tag": "b"}))
    path = Path(desk.good("pull", REPO, "--revision", first).stdout.strip())
    assert sha256(path) == sha256(tiny)


def test_a_profile_by_name_and_by_file(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny})
    desk.shelf.profile("mine", file="m-Q8_0.gguf", repo=REPO, sha256=sha256(tiny), license="mit")
    result = desk.good("pull", "mine")
    assert result.stdout == f"{desk.place(REPO, 'm-Q8_0.gguf')}\n"
    assert "(as profile mine says)" in result.stderr
    assert "licence: mit" in result.stderr
    assert "`forgelm serve --profile mine`" in result.stderr
    other = desk.run("pull", "mine", "--quant", "Q4_K_M")
    assert (other.returncode, "names its own file" in last_words(other.stderr)) == (2, True)
    by_file = desk.good("pull", str(desk.shelf.profiles / "mine.toml"))
    assert by_file.stdout == result.stdout


@pytest.mark.parametrize("by_file", [False, True])
def test_another_file_than_a_profile_names_is_refused(desk: Desk, tiny: Path, by_file: bool) -> None:
    desk.hub.add(REPO, {"m-Q8_0.gguf": tiny})
    desk.shelf.profile("mine", file="m-Q8_0.gguf", repo=REPO, sha256="0" * 64)
    said = desk.refused("pull", str(desk.shelf.profiles / "mine.toml") if by_file else "mine")
    assert "another m-Q8_0.gguf" in said
    assert not desk.place(REPO, "m-Q8_0.gguf").exists()


def test_the_starter_asks_no_hub(desk: Desk, starter_path: Path) -> None:
    result = desk.good("pull", "starter", "--offline", FORGELM_MODELS=str(starter_path.parent))
    assert result.stdout == f"{starter_path}\n"
    for said in (
        desk.refused("pull", "starter", "--offline"),
        desk.refused("pull", "starter", FORGELM_OFFLINE="1"),
        desk.refused("pull", "starter", HF_HUB_OFFLINE="1"),
    ):
        assert "has to be fetched, and this is offline" in said
    assert desk.hub.log.requests() == []


# --- what is asked ----------------------------------------------------------------------------------------------------

TERMS = "https://example.com/terms"


def test_a_licence_is_accepted_once(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny}, license="llama3.2", license_link=TERMS)
    said = desk.refused("pull", REPO)
    assert "'llama3.2'" in said
    assert TERMS in said
    assert "--accept-license" in said
    assert not desk.place(REPO, "m-Q4_K_M.gguf").exists()
    desk.good("pull", REPO, "--accept-license")
    assert f"licence: llama3.2 ({TERMS})" in desk.good("pull", f"{REPO}:Q8_0").stderr


def test_a_terminal_is_asked_for_the_licence(desk: Desk, tiny: Path) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny}, license="gemma")
    with desk.terminal("pull", REPO) as terminal:
        assert "licence: gemma" in terminal.expect("Do you accept this licence? [y/N]")
        terminal.type("\r")
        output, code = terminal.finish()
    assert code == 1
    assert "nothing was fetched" in output
    assert not desk.shelf.models.joinpath("owner").exists()
    with desk.terminal("pull", REPO) as terminal:
        terminal.expect("[y/N]")
        terminal.type("y\r")
        output, code = terminal.finish()
    assert code == 0
    assert str(desk.place(REPO, "m-Q4_K_M.gguf")) in output


def test_what_does_not_fit_is_asked_for(desk: Desk, tmp_path: Path) -> None:
    """A terabyte of weights, of which only the header is there to be read."""
    path = tmp_path / "large.gguf"
    write_dense(Dense("llama", 10, 65_536, 262_144, 512, 64, 128, 32_000, tied=False), path, Kind.F16)
    model = desk.hub.add(REPO, {})
    content = Content(path, path.stat().st_size, "0" * 64, "0" * 40, lfs=True)
    desk.hub.catalog.contents[content.sha256] = content
    model.move({"large-F16.gguf": content})
    with desk.terminal("pull", REPO) as terminal:
        said = terminal.expect("Fetch it nevertheless? [y/N]")
        terminal.type("n\r")
        output, code = terminal.finish()
    assert "(the smallest, and no other fits either)" in said
    assert "too large for this machine: " in said
    assert (code, "nothing was fetched" in output) == (1, True)
    said = desk.refused("pull", REPO)
    assert "free" in said


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_here_and_the_same_command_goes_on(desk: Desk, starter_path: Path) -> None:
    content = desk.hub.add(REPO, {"m-Q4_1.gguf": starter_path}).files["m-Q4_1.gguf"]
    desk.hub.faults.rate = 40e6
    with desk.terminal("pull", REPO) as terminal:
        bar = terminal.expect("MB/s")
        while desk.sent(content) < 12e6:
            time.sleep(0.02)
        terminal.interrupt()
        output, code = terminal.finish()
    assert code == 130
    assert "Fetching" in bar
    assert "/98.4 MB" in bar
    assert "98.4 MB here: the same command goes on from there" in output
    assert not desk.place(REPO, "m-Q4_1.gguf").exists()
    assert desk.good("models", "--json").stdout == '{"models":[],"missing":[]}\n'
    before = desk.sent(content)
    desk.hub.faults.rate = None
    result = desk.good("pull", REPO)
    assert "MB of it are here: the rest is fetched" in result.stderr
    assert desk.sent(content) - before < content.size - before + MORE
    assert sha256(Path(result.stdout.strip())) == content.sha256


def test_an_interruption_without_a_terminal(desk: Desk, starter_path: Path) -> None:
    content = desk.hub.add(REPO, {"m-Q4_1.gguf": starter_path}).files["m-Q4_1.gguf"]
    desk.hub.faults.rate = 40e6
    with desk.start("pull", REPO) as process:
        while desk.sent(content) < 12e6:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1].endswith("here: the same command goes on from there")


def test_a_file_that_another_process_fetches_is_waited_for(desk: Desk, starter_path: Path) -> None:
    content = desk.hub.add(REPO, {"m-Q4_1.gguf": starter_path}).files["m-Q4_1.gguf"]
    desk.hub.faults.rate = 40e6
    with desk.start("pull", REPO) as first:
        while desk.sent(content) < 4e6:
            time.sleep(0.02)
        with desk.start("pull", REPO) as second:
            one, two = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert one[0] == two[0] == f"{desk.place(REPO, 'm-Q4_1.gguf')}\n"
    assert "Waiting for another process to fetch 98.4 MB" in two[1]
    assert desk.sent(content) < content.size + MORE


# --- what isn't to be had ---------------------------------------------------------------------------------------------


def test_offline(desk: Desk, tiny: Path) -> None:
    model = desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny})
    for said in (desk.refused("pull", REPO, "--offline"), desk.refused("pull", REPO, HF_HUB_OFFLINE="1")):
        assert REPO in said
        assert "offline" in said
    path = desk.cache(model, "m-Q4_K_M.gguf")
    result = desk.good("pull", REPO, "--offline", "--accept-license")
    assert result.stdout == f"{path}\n"
    assert "a Hugging Face cache has it: it is listed from there" in result.stderr
    assert desk.hub.log.requests() == []
    assert list(desk.shelf.models.iterdir()) == []


def test_a_gated_repository(desk: Desk, tiny: Path) -> None:
    model = desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny}, gated="manual")
    said = desk.refused("pull", REPO)
    assert "gated" in said
    assert "HF_TOKEN" in said
    desk.hub.tokens.add("hf_friend")
    model.allowed.add("hf_friend")
    assert desk.good("pull", REPO, HF_TOKEN="hf_friend").stdout == f"{desk.place(REPO, 'm-Q4_K_M.gguf')}\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turbo_4", "Did you mean the profile turbo_4b? `forgelm search turbo_4` asks the hub."),
        ("owner/tinny-GGUF", f"Did you mean {REPO}?"),
        ("owner/tiny", f"Did you mean {REPO}?"),
        (f"{REPO}:Q5_K_M", "There is: Q4_K_M, Q8_0."),
        ("https://huggingface.co/datasets/owner/tiny", "names no model on the hub"),
    ],
)
def test_names_that_are_nearly_right(desk: Desk, tiny: Path, name: str, said: str) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny})
    desk.hub.add("owner/tiny", {"model.safetensors": b"x"}, tags=())
    error = desk.refused("pull", name)
    assert said in error
    assert (f"{REPO}?" in error) == (f"{REPO}?" in said)


def test_a_file_that_is_no_model(desk: Desk) -> None:
    content = desk.hub.add(REPO, {"m-Q4_K_M.gguf": b"PK\x03\x04" + bytes(100_000)}).files["m-Q4_K_M.gguf"]
    assert "can't be served: it is no GGUF file but a zip archive" in desk.refused("pull", REPO)
    assert desk.sent(content) <= content.size
    assert list(desk.shelf.models.iterdir()) == []


def test_a_file_where_the_models_folder_should_be(desk: Desk, tiny: Path, tmp_path: Path) -> None:
    desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny})
    assert "tiny.gguf" in desk.refused("pull", REPO, FORGELM_MODELS=str(tiny))


# --- a model that is here ---------------------------------------------------------------------------------------------


def test_verify_fetches_a_damaged_one_anew(desk: Desk, tiny: Path) -> None:
    content = desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny}).files["m-Q4_K_M.gguf"]
    path = Path(desk.good("pull", REPO).stdout.strip())
    assert "it is here already" in desk.good("pull", REPO, "--verify").stderr
    damaged = bytearray(tiny.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    result = desk.good("pull", REPO, "--verify")
    assert "it is fetched anew" in result.stderr
    assert sha256(path) == content.sha256


def test_verify_leaves_a_damaged_import_alone(desk: Desk, tiny: Path) -> None:
    model = desk.hub.add(REPO, {"m-Q4_K_M.gguf": tiny})
    path = desk.cache(model, "m-Q4_K_M.gguf")
    desk.good("pull", REPO)
    damaged = bytearray(tiny.read_bytes())
    damaged[-1] ^= 1
    path.resolve().write_bytes(damaged)
    result = desk.run("pull", REPO, "--verify")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{path} can't be used: it is damaged" in last_words(result.stderr)
    assert path.read_bytes() == damaged
