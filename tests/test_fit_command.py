"""`forgelm fit` as its users meet it: a process, its tables, its JSON and its exit code."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fit import sparse
from tests.program import FORGELM, Terminal, forgelm

pytestmark = pytest.mark.server

GIB = 2**30
ON_8G = ("--vram", "8G", "--used", "512M", "--ram", "16G")


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return forgelm("fit", *arguments, env=env)


def report(*arguments: str, **env: str) -> dict[str, Any]:
    result = run(*arguments, "--json", **env)
    assert result.stderr == "", result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["fits"] is (result.returncode == 0)
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_for_a_card_that_isnt_here() -> None:
    result = run("--profile", "turbo_4b", *ON_8G)
    assert (result.returncode, result.stderr) == (0, "")
    for said in (
        "published shape and size of Qwen3.5-4B Q4_K_M",
        "65,536 cells × 17,408 bytes (q8_0)",
        "8 sequences × 50.25 MiB × 4",
        "speculation ngram",
        "MTP head",
        "the token embedding on both",
        "CUDA context",
        "in use by others",
        "It fits.",
        "Longest context with these settings: 95,232 tokens; a request gets at most 262,144.",
    ):
        assert said in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_other_quantizations() -> None:
    result = run("--profile", "balanced_9b", *ON_8G, "--quants")
    assert (result.returncode, result.stderr) == (0, "")
    rows = {cells[0]: cells[1:] for cells in (line.split() for line in result.stdout.splitlines()) if len(cells) == 11}
    assert list(rows) == ["weights", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"]
    assert rows["weights"] == ["GiB", *(f"{k}×{n}" for k in ("f16", "q8_0", "q4_0") for n in (1, 2, 4))]
    assert rows["Q4_K_M"][0] == "4.75"
    assert set(rows["Q8_0"][1:]) == {"—"}
    assert "f16 32,768, q8_0 17,408, q4_0 9,216" in result.stdout


def test_quantizations_of_a_model_nobody_described(starter_path: Path) -> None:
    result = run("--profile", "starter", "--quants", FORGELM_MODELS=str(starter_path.parent))
    assert result.returncode == 0
    assert "Nothing is published here" in result.stdout


def test_a_file_on_the_cpu(starter_path: Path) -> None:
    result = run("--profile", "starter", "--device", "cpu", FORGELM_MODELS=str(starter_path.parent))
    assert (result.returncode, result.stderr) == (0, "")
    assert "the file's header" in result.stdout
    assert "GPU" not in result.stdout


def test_a_terminal_gets_its_own_width() -> None:
    with Terminal([*FORGELM, "fit", "--profile", "turbo_4b", *ON_8G], env={"COLUMNS": "100"}) as terminal:
        output, code = terminal.finish()
    assert code == 0
    assert "It fits." in output


# --- what is counted --------------------------------------------------------------------------------------------------


def test_the_json_adds_up() -> None:
    found = report("--profile", "balanced_9b", *ON_8G)
    assert sum(part["gpu"] for part in found["parts"]) == found["gpu"]["needed"]
    assert sum(part["host"] for part in found["parts"]) == found["ram"]["needed"]
    gpu = found["gpu"]
    assert gpu["total"] - gpu["in_use"] - gpu["margin"] - gpu["needed"] == gpu["left"] > 0
    assert (gpu["total"], gpu["in_use"]) == (8 * GIB, GIB // 2)
    assert found["kv_bytes_per_token"] == 17_408
    assert found["settings"] == {
        "context": 32_768,
        "kv_type": "q8_0",
        "parallel": 2,
        "kept": 4,
        "layers_on_gpu": 34,
    }
    assert found["longest_context"] == found["longest_contexts"]["q8_0"]["2"]


def test_longest_contexts_grow_with_fewer_bits_and_fewer_requests() -> None:
    grid = report("--profile", "balanced_9b", *ON_8G)["longest_contexts"]
    for by_count in grid.values():
        assert list(by_count.values()) == sorted(by_count.values(), reverse=True)
    for count in ("1", "2", "4"):
        assert grid["f16"][count] < grid["q8_0"][count] < grid["q4_0"][count]


@pytest.mark.parametrize("profile", ["turbo_4b", "balanced_9b"])
@pytest.mark.parametrize("preset", ["short", "medium", "long"])
def test_every_preset_fits_the_card_it_is_for(profile: str, preset: str) -> None:
    """8 GB with half a gigabyte of desktop, and nothing given up but guesses."""
    found = report("--profile", profile, "--preset", preset, *ON_8G)
    assert found["fits"]
    assert all("speculation" in step or "guessed" in step for step in found["steps"])
    assert report("--profile", profile, "--preset", preset, "--speculation", "off", *ON_8G)["steps"] == []


@pytest.mark.parametrize("profile", ["cpu_fallback", "cpu_fallback_small"])
@pytest.mark.parametrize("preset", ["short", "medium", "long"])
def test_every_preset_fits_the_machine_it_is_for(profile: str, preset: str) -> None:
    """3 GB free of the 4 GB that the larger one asks for."""
    found = report("--profile", profile, "--preset", preset, "--ram", "3G")
    assert (found["fits"], found["steps"], found["gpu"]) == (True, [], None)


def test_a_flag_beats_the_preset_and_the_preset_the_profile() -> None:
    found = report("--profile", "turbo_4b", "--preset", "long", "--kv-type", "q8_0", "--context", "65536", *ON_8G)
    assert (found["settings"]["kv_type"], found["settings"]["context"]) == ("q8_0", 65_536)
    assert found["settings"]["parallel"] == 1
    variable = report("--profile", "turbo_4b", *ON_8G, FORGELM_PRESET="short")
    assert variable["settings"]["parallel"] == 8


def test_speculation_is_counted_as_it_is_asked_for() -> None:
    off, mtp, profiles = (
        report("--profile", "turbo_4b", *ON_8G, *more)
        for more in (("--speculation", "off"), ("--speculation", "mtp"), ())
    )
    names = [part["name"] for part in mtp["parts"]]
    assert "MTP head" in names
    assert "MTP head" not in [part["name"] for part in off["parts"]]
    states = [next(p["gpu"] for p in each["parts"] if p["name"] == "recurrent states") for each in (off, mtp)]
    assert states[1] == 4 * states[0]
    assert [each["speculation"]["drafters"] for each in (off, mtp, profiles)] == [[], ["mtp"], ["ngram", "mtp"]]
    variable = report("--profile", "turbo_4b", *ON_8G, FORGELM_SPECULATION="off")
    assert variable["parts"] == off["parts"]


def test_a_draft_model_is_a_part(starter_path: Path) -> None:
    found = report("--profile", "turbo_4b", *ON_8G, "--draft-model", str(starter_path))
    assert found["speculation"]["drafters"] == ["draft"]
    (part,) = (part for part in found["parts"] if part["name"] == "draft model")
    assert part["gpu"] > starter_path.stat().st_size


def test_a_card_that_is_short_gets_no_speculation() -> None:
    result = run("--profile", "balanced_9b", "--vram", "8G", "--used", "1400M", "--ram", "16G")
    assert result.returncode == 0
    assert "It fits after giving up: speculation off: the draft would not fit." in result.stdout
    assert "speculation off" in result.stdout.splitlines()[1]


def test_a_head_that_the_model_lacks_is_refused(starter_path: Path) -> None:
    models = str(starter_path.parent)
    result = run("--profile", "starter", "--device", "cpu", "--speculation", "mtp", FORGELM_MODELS=models)
    assert result.returncode == 1
    assert "llama models are not known to have a next-token head" in result.stderr


def test_a_given_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    sparse.write_dense(sparse.LLAMA_8B, path)
    found = report("--profile", "turbo_4b", "--model", str(path), *ON_8G)
    assert found["source"] == "the file's header"
    assert found["state_bytes"] == 0
    assert found["kv_bytes_per_token"] == 32 * 2 * 1024 * 34 // 32


def test_what_llama_cpp_says_is_not_in_the_report(tmp_path: Path) -> None:
    """Without `log.configure` structlog writes to stdout, where builds with modules name each that they load."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100)
    done = run("--profile", "starter", "--model", str(path), "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "gguf_init" in done.stderr, "llama.cpp has said nothing, so this shows nothing"


# --- what doesn't fit -------------------------------------------------------------------------------------------------


def test_steps_down_are_told() -> None:
    arguments = ("--profile", "turbo_4b", "--vram", "5G", "--used", "256M", "--ram", "16G")
    found = report(*arguments)
    assert found["fits"]
    assert found["gpu"]["left"] >= 0
    assert found["steps"][0] == "speculation off: the draft would not fit"
    assert found["steps"][1:] == [f"context 65,536 → {found['settings']['context']:,}", "kept sequences 4 → 1"]
    assert f"It fits after giving up: {', '.join(found['steps'])}." in run(*arguments).stdout.replace("\n", " ")


def test_another_profile_is_named_where_that_one_fits() -> None:
    result = run("--profile", "balanced_9b", "--vram", "6G", "--used", "512M", "--ram", "16G", "--context", "32768",
                 "--n-gpu-layers", "-1", "--kv-type", "q8_0")  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("; or take `--profile turbo_4b`")


def test_what_was_asked_for_by_flag_is_refused_rather_than_changed() -> None:
    flags = ("--context", "65536", "--kv-type", "f16", "--parallel", "8", "--n-gpu-layers", "-1")
    result = run("--profile", "balanced_9b", *flags, *ON_8G)
    assert result.returncode == 1
    assert "It doesn't fit." in result.stdout
    line = result.stderr.strip()
    assert "\n" not in line
    assert "balanced_9b doesn't fit: it takes" in line
    assert line.endswith("It would fit with KV type f16 → q8_0")


def test_a_machine_that_is_far_too_small() -> None:
    result = run("--profile", "balanced_9b", "--device", "cpu", "--ram", "1G")
    assert result.returncode == 1
    assert "Its weights alone are 5.3 GiB" in result.stderr
    assert "--profile cpu_fallback_small" in result.stderr


def test_what_is_larger_is_no_way_out() -> None:
    result = run("--profile", "starter", "--device", "cpu", "--ram", "300M")
    assert result.returncode == 1
    assert "starter doesn't fit" in result.stderr
    assert "--profile" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--profile", "turbo_4b", "--vram", "8x"), 2, "'8x' is no size"),
        (("--profile", "turbo_4b", "--kv-type", "q5_0", *ON_8G), 2, "flash attention"),
        (("--profile", "turbo_4b", "--preset", "huge", *ON_8G), 2, "no preset 'huge'"),
        (("--profile", "turbo_4b", "--model", "none.gguf", *ON_8G), 1, "no model file at none.gguf"),
        (("--profile", "turbo"), 2, "no profile named"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_gpu_profile_where_no_gpu_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("--profile", "turbo_4b", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1
    assert "--vram 8G" in result.stderr


def test_without_a_profile_the_largest_that_fits() -> None:
    assert report(*ON_8G)["profile"] == "balanced_9b"
    assert report("--vram", "6G", "--used", "512M", "--ram", "16G")["profile"] == "turbo_4b"
