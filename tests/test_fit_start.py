"""The fit at every start of `forgelm serve`: its line in the log, what it changes, and when it refuses."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from forgelm.commands.fitting import cards_for, fitted, unfitted_drafting
from forgelm.ipc.start import Drafting
from forgelm.machine import Machine, read_machine
from forgelm.profiles import load_profile
from tests.fit import sparse
from tests.processes.serving import Served, serve
from tests.program import forgelm

pytestmark = pytest.mark.server

TOO_LONG = 2_000_000_000
"""Tokens that no machine has RAM for."""
PROFILE = """
name = "vast"
[model]
id = "vast"
file = "{file}"
[engine]
device = "cpu"
context = {context}
parallel = 4
n_batch = 512
fit = "{fit}"
[presets.short]
context = 2048
kv_type = "q8_0"
parallel = 3
"""


@pytest.fixture
def machine() -> Machine:
    return read_machine()


def written(directory: Path, starter: Path, *, fit: str = "adjust", context: int = TOO_LONG) -> str:
    path = directory / "vast.toml"
    path.write_text(PROFILE.format(file=starter.name, fit=fit, context=context))
    return str(path)


def engine_of(server: Served) -> dict[str, Any]:
    """The engine's settings, as its process was given them."""
    config = json.loads(psutil.Process(server.engine).cmdline()[-1])
    return dict(config["engine"])


def fit_lines(server: Served) -> list[dict[str, Any]]:
    return [line for line in server.log if line.get("logger") == "fit"]


def test_one_line_says_the_sum(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, fake={}) as server:
        server.ready()
        (line,) = fit_lines(server)
        assert line["level"] == "info"
        assert line["needed"].endswith(" GiB RAM")


def test_the_parts_are_in_the_debug_log(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, fake={}, FORGELM_LOG_LEVEL="debug") as server:
        server.ready()
        parts = {line["part"]: line["ram_mib"] for line in fit_lines(server) if "part" in line}
    assert parts["weights"] == 92
    assert parts["KV cache"] == 180


def test_a_context_too_long_is_cut_to_what_fits(starter_path: Path, tmp_path: Path) -> None:
    profile = written(tmp_path, starter_path)
    with serve(tmp_path, "--profile", profile, fake={}, FORGELM_MODELS=str(starter_path.parent)) as server:
        server.ready()
        (line,) = fit_lines(server)
        engine = engine_of(server)
    assert line["level"] == "warning"
    assert "KV type f16 → q8_0" in line["steps"]
    assert f"context {TOO_LONG:,} → {engine['context']:,}" in line["steps"]
    assert engine["context"] < TOO_LONG // 2


@pytest.mark.parametrize("flags", [("--fit", "strict"), ("--context", str(TOO_LONG))])
def test_strict_profiles_and_flags_are_refused_instead(
    starter_path: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    profile = written(tmp_path, starter_path)
    settings = {"FORGELM_MODELS": str(starter_path.parent), "FORGELM_FAKE_ENGINE": "{}"}
    run = forgelm("serve", "--profile", profile, "--port", "0", *flags, env=settings)
    assert run.returncode == 1
    (line,) = [line for line in run.stderr.splitlines() if not line.startswith("{")]
    assert "vast doesn't fit: it takes" in line
    assert "It would fit with" in line
    assert "--fit off" in line


def test_off_starts_without_a_look(starter_path: Path, tmp_path: Path) -> None:
    profile = written(tmp_path, starter_path, fit="off")
    with serve(tmp_path, "--profile", profile, fake={}, FORGELM_MODELS=str(starter_path.parent)) as server:
        server.ready()
        assert fit_lines(server) == []
        assert engine_of(server)["context"] == TOO_LONG


def test_a_preset_reaches_the_engine_and_a_flag_beats_it(starter_path: Path, tmp_path: Path) -> None:
    profile = written(tmp_path, starter_path)
    variables = {"FORGELM_MODELS": str(starter_path.parent), "FORGELM_PRESET": "short"}
    with serve(tmp_path, "--profile", profile, "--parallel", "2", fake={}, **variables) as server:
        server.ready()
        engine = engine_of(server)
    assert (engine["context"], engine["kv_type"], engine["parallel"]) == (2048, "q8_0", 2)


def test_an_unknown_preset_is_refused(starter_path: Path) -> None:
    run = forgelm("serve", "--profile", "starter", "--preset", "tiny", env={"FORGELM_MODELS": str(starter_path.parent)})
    assert run.returncode == 2
    assert "no preset 'tiny'; it has: short, medium, long" in run.stderr


# --- speculation ------------------------------------------------------------------------------------------------------


def drafting_of(server: Served) -> dict[str, Any]:
    """What the engine's process was told of drafters."""
    config = json.loads(psutil.Process(server.engine).cmdline()[-1])
    return dict(config["drafting"])


def test_what_guesses_reaches_the_engine_and_the_log(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, fake={}) as server:
        server.ready()
        drafting = drafting_of(server)
        (line,) = fit_lines(server)
    assert (drafting["ngram"], drafting["mtp"], drafting["draft"], drafting["rollback"]) == (True, "", "", 0)
    assert line["speculation"] == "ngram"


def test_flags_and_variables_choose_the_drafter(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--draft-model", starter_path.name, fake={}, FORGELM_SPECULATION="draft") as server:
        server.ready()
        drafting = drafting_of(server)
    assert (drafting["ngram"], drafting["draft"]) == (False, str(starter_path.resolve()))


def test_off_reaches_the_engine_without_a_fit_too(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--speculation", "off", "--fit", "off", fake={}) as server:
        server.ready()
        assert not drafting_of(server)["ngram"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--speculation", "mtp"), 1, "llama models are not known to have a next-token head"),
        (("--speculation", "mtp", "--fit", "off"), 1, "llama models are not known to have a next-token head"),
        (("--draft-model", "absent.gguf"), 1, "no draft model at absent.gguf"),
        (("--speculation", "draft"), 2, "name one with --draft-model"),
        (("--speculation", "ngram", "--draft-model", "x.gguf"), 2, "of no use to speculation 'ngram'"),
    ],
)
def test_a_drafter_that_cant_be_is_refused_in_a_line(
    starter_path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    settings = {"FORGELM_MODELS": str(starter_path.parent), "FORGELM_FAKE_ENGINE": "{}"}
    run = forgelm("serve", "--profile", "starter", "--port", "0", *flags, env=settings)
    assert run.returncode == code
    (line,) = [line for line in run.stderr.splitlines() if not line.startswith("{")]
    assert said in line


def test_what_cant_be_weighed_is_taken_only_where_it_was_named(
    tmp_path: Path, machine: Machine, starter_path: Path
) -> None:
    path = tmp_path / "latent.gguf"
    sparse.write_dense(sparse.QWEN3_06B._replace(layers=1), path, attention__kv_lora_rank=512)
    profile = load_profile("starter")
    assert unfitted_drafting(profile, path, machine) == Drafting(ngram=True)
    named = profile.with_overrides({"speculation": {"drafter": "draft", "model": str(starter_path)}})
    assert unfitted_drafting(named, path, machine).draft == str(starter_path.resolve())


def test_without_a_fit_all_that_is_wanted_is_used(machine: Machine, qwen35_path: Path) -> None:
    named = {"engine.fit": "off", "speculation": {"drafter": "ngram", "depth": 2}}
    profile = load_profile("starter").with_overrides(named)
    assert unfitted_drafting(profile, qwen35_path, machine) == Drafting(ngram=True, depth=2, rollback=2)


# --- what can't be told -----------------------------------------------------------------------------------------------


def test_an_unknown_kind_of_memory_is_said_and_starts(tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "latent.gguf"
    sparse.write_dense(sparse.QWEN3_06B._replace(layers=1), path, attention__kv_lora_rank=512)
    assert fitted(load_profile("starter"), path, machine) is None


def test_a_damaged_file_is_left_to_the_engine(tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    assert fitted(load_profile("starter"), path, machine) is None


def test_cards_count_only_where_llama_cpp_can_use_them(machine: Machine) -> None:
    """This build has no GPU support: a profile that takes what there is runs on the CPU."""
    assert cards_for(load_profile("starter"), machine) == ()
    assert cards_for(load_profile("cpu_fallback"), machine) == ()
    assert cards_for(load_profile("turbo_4b").with_overrides({"engine.device": "cpu"}), machine) == ()
