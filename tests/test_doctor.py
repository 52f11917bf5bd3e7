"""`forgelm doctor`: the report from outside, and single checks on machines we only describe."""

import json
import socket
from pathlib import Path

import msgspec
import pytest

from forgelm import profiles, selection
from forgelm.commands import doctor
from forgelm.llama.lib import BINDINGS, COMMIT, BuildInfo
from forgelm.machine import Cores, Gpu, Gpus, Machine, Memory
from tests.program import FORGELM, Terminal, forgelm

GIB = 2**30
CPU_FEATURES = "CPU : AVX2 = 1 | FMA = 1 | F16C = 1 | OPENMP = 1 | "
CPU_BUILD = BuildInfo(BINDINGS, "0.5.0", COMMIT, CPU_FEATURES, gpu_offload=False, openmp=True)
CUDA_BUILD = BuildInfo(BINDINGS, "0.5.0", COMMIT, f"CUDA : ARCHS = 860,890 | {CPU_FEATURES}", True, True)
CARD = Gpu(
    index=0,
    uuid="GPU-aaaa",
    name="NVIDIA GeForce RTX 3070",
    bus_id="0000:c1:00.0",
    total=8 * GIB,
    free=int(7.5 * GIB),
    driver="580.95.05",
    capability=(8, 6),
)


NO_GPUS = Gpus(reason="no driver")


def machine(gpus: Gpus = NO_GPUS, flags: tuple[str, ...] = ("avx2", "fma", "f16c")) -> Machine:
    return Machine(
        cores=Cores(usable=4, online=4, affinity=4, quota=None),
        memory=Memory(total=16 * GIB, available=8 * GIB, limit=None),
        flags=flags,
        gpus=gpus,
    )


def report(*arguments: str, **env: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Exit code and name → (status, detail, remedy) of a real run."""
    result = forgelm("doctor", "--json", *arguments, env=env)
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert answer["ok"] is (result.returncode == 0)
    return result.returncode, {c["name"]: (c["status"], c["detail"], c["remedy"]) for c in answer["checks"]}


# ---- from outside ----------------------------------------------------------------------------------------------------


def test_every_line_has_a_verdict(tmp_path: Path) -> None:
    result = forgelm("doctor", "--port", "0", env={"FORGELM_MODELS": str(tmp_path)})
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    verdicts = [line for line in lines if not line.startswith(" ")]
    assert all(line.split()[0] in ("ok", "warn") for line in verdicts)
    assert all(line.strip().startswith("-> ") for line in lines if line.startswith(" "))
    assert "\x1b" not in result.stdout


def test_the_report_covers_what_a_server_needs(tmp_path: Path) -> None:
    code, checks = report("--port", "0", FORGELM_MODELS=str(tmp_path))
    assert code == 0
    expected = {"python", "llama.cpp", "features", "cpu flags", "cores", "memory", "memory limit", "gpu", "profile"}
    assert expected | {"disk", "port", "model starter"} <= checks.keys()
    assert COMMIT in checks["llama.cpp"][1]
    assert not any(tmp_path.iterdir())


def test_a_damaged_model_fails_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF" + bytes(100))
    qwen = tmp_path / "unsloth/Qwen3.5-2B-GGUF/Qwen3.5-2B-Q4_K_M.gguf"
    qwen.parent.mkdir(parents=True)
    qwen.write_bytes(b"<html>")
    code, checks = report("--port", "0", FORGELM_MODELS=str(tmp_path))
    assert code == 1
    status, detail, remedy = checks["model starter"]
    assert status == "fail"
    assert "has 104 bytes instead of 98,362,432" in detail
    assert "forgelm pull starter" in remedy
    assert checks["model cpu_fallback"][0] == "fail"
    assert "not a GGUF" in checks["model cpu_fallback"][1]


def test_a_broken_profile_of_the_users_fails_alone(tmp_path: Path) -> None:
    profiles = tmp_path / "forgelm" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "mine.toml").write_text('name = "mine"\nmodle = 1\n')
    code, checks = report("--port", "0", XDG_CONFIG_HOME=str(tmp_path), FORGELM_MODELS=str(tmp_path))
    assert code == 1
    assert [name for name, check in checks.items() if check[0] == "fail"] == ["profile mine"]
    assert "mine.toml" in checks["profile mine"][1]


def test_a_taken_port_is_a_warning_and_the_flag_beats_the_variable(tmp_path: Path) -> None:
    """The holder may be a ForgeLM that runs already. Flag, then FORGELM_PORT, then the default."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        code, checks = report(FORGELM_PORT=str(number), FORGELM_MODELS=str(tmp_path))
        assert code == 0
        status, detail, remedy = checks["port"]
        assert status == "warn"
        assert f"port {number} is taken by" in detail
        assert "--port" in remedy
        _, checks = report("--port", "0", FORGELM_PORT=str(number), FORGELM_MODELS=str(tmp_path))
        assert checks["port"][0] == "ok"


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_only_where_wanted(tmp_path: Path, env: dict[str, str], coloured: bool) -> None:
    with Terminal([*FORGELM, "doctor", "--port", "0"], env={**env, "FORGELM_MODELS": str(tmp_path)}) as terminal:
        output, code = terminal.finish()
    assert code == 0
    assert ("\x1b[32mok" in output) is coloured


# ---- single checks ---------------------------------------------------------------------------------------------------


def test_an_old_python() -> None:
    assert doctor.check_python((3, 10, 4)).status == "fail"
    assert doctor.check_python((3, 11, 0)).status == "ok"


def test_a_library_that_does_not_load_fails_and_says_how_to_get_one() -> None:
    (check,) = doctor.check_library("libllama can't be loaded: no such file")
    assert check.status == "fail"
    assert "make setup" in check.remedy


def test_another_version_of_the_bindings_is_a_warning() -> None:
    other = BuildInfo("0.4.0", "0.6.0", "unknown", CPU_FEATURES, gpu_offload=False, openmp=True)
    assert next(doctor.check_library(other)).status == "warn"
    assert next(doctor.check_library(CPU_BUILD)).status == "ok"


def test_cpu_flags_that_llama_cpp_was_compiled_without() -> None:
    """As after copying a virtual environment from an older machine."""
    check = next(doctor.check_cpu(machine(flags=("avx2", "fma", "f16c", "avx512f")), CPU_BUILD))
    assert check.status == "warn"
    assert "avx512f" in check.remedy
    assert next(doctor.check_cpu(machine(), CPU_BUILD)).status == "ok"


def test_a_quota_of_one_core_is_a_warning() -> None:
    check = doctor._check_cores(Cores(usable=1, online=8, affinity=8, quota=1.5))
    assert check.status == "warn"
    assert "cgroup quota 1.5" in check.detail


@pytest.mark.parametrize(
    ("memory", "statuses"),
    [
        (Memory(16 * GIB, 8 * GIB, None), ["ok", "ok"]),
        (Memory(16 * GIB, GIB // 2, None), ["warn", "ok"]),
        (Memory(16 * GIB, 2 * GIB, 2 * GIB), ["ok", "warn"]),
        (Memory(16 * GIB, 8 * GIB, 8 * GIB), ["ok", "ok"]),
    ],
)
def test_memory_and_its_limit(memory: Memory, statuses: list[str]) -> None:
    assert [check.status for check in doctor.check_memory(memory)] == statuses


def test_no_gpu_is_fine() -> None:
    (check,) = doctor.check_gpus(machine(), CPU_BUILD)
    assert (check.status, check.detail) == ("ok", "none: no driver")


def test_a_usable_gpu() -> None:
    (check,) = doctor.check_gpus(machine(Gpus((CARD,))), CUDA_BUILD)
    assert check.status == "ok"
    for part in ("0: NVIDIA GeForce RTX 3070", "7.5 GiB free of 8.0 GiB", "580.95.05", "8.6", "0000:c1:00.0"):
        assert part in check.detail


def test_a_gpu_without_a_cuda_build() -> None:
    (check,) = doctor.check_gpus(machine(Gpus((CARD,))), CPU_BUILD)
    assert check.status == "warn"
    assert "built without CUDA" in check.detail
    assert "make cuda" in check.remedy


def test_a_card_older_than_the_compiled_code() -> None:
    """It would be chosen, load, and end the engine at its first kernel."""
    old = msgspec.structs.replace(CARD, name="NVIDIA GeForce RTX 2080", capability=(7, 5))
    (check,) = doctor.check_gpus(machine(Gpus((old,))), CUDA_BUILD)
    assert check.status == "fail"
    assert "8.6" in check.remedy
    assert "CMAKE_CUDA_ARCHITECTURES=75" in check.remedy


def test_one_card_of_two_is_lost() -> None:
    checks = list(doctor.check_gpus(machine(Gpus((CARD,), "GPU 1 doesn't answer: lost")), CUDA_BUILD))
    assert [check.status for check in checks] == ["ok", "warn"]


def test_absence_is_a_warning_only_for_the_chosen_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGELM_MODELS", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    checks = {check.name: check for check in doctor.check_models(profiles.load_profile("cpu_fallback"))}
    assert checks["model cpu_fallback"].status == "warn"
    remedy = "run `forgelm pull cpu_fallback`, which fetches 1.28 GB of unsloth/Qwen3.5-2B-GGUF"
    assert checks["model cpu_fallback"].remedy == remedy
    assert checks["model turbo_4b"].status == "ok"


def test_a_disk_too_small_for_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGELM_MODELS", str(tmp_path / "not" / "yet"))
    chosen = profiles.load_profile("starter")
    assert doctor.check_disk(tmp_path / "not" / "yet", chosen).status == "ok"
    vast = msgspec.structs.replace(chosen, model=msgspec.structs.replace(chosen.model, bytes=10**18))
    check = doctor.check_disk(tmp_path / "not" / "yet", vast)
    assert check.status == "warn"
    assert "FORGELM_MODELS" in check.remedy


def test_the_choice_is_said_with_its_reason() -> None:
    choice = selection.choose_profile(machine(), selection.shipped_profiles(), selection.Offload(False))
    check = doctor.check_choice(choice)
    assert check.status == "ok"
    assert check.detail.startswith("cpu_fallback: no usable GPU")
    assert doctor.check_choice("llama.cpp doesn't load").status == "fail"
