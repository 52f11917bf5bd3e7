"""Set-up's parts without a process: what names a wheel, what progress looks like, what the lock files promise."""

import ast
import re
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forgelm import bootstrap, bootstrap_cuda, bootstrap_engine, bootstrap_mode, bootstrap_run

ROOT = Path(__file__).parent.parent


def test_an_old_python_can_read_the_file_that_turns_it_away() -> None:
    ast.parse((ROOT / "forgelm" / "bootstrap.py").read_text(), feature_version=(3, 6))


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    features = ["avx2", "fma"]
    monkeypatch.setattr(bootstrap_engine, "cpu_features", lambda: features)
    return features


def test_a_wheel_is_named_by_what_changes_its_code(processor: list[str]) -> None:
    plain = dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, "")
    keys = {bootstrap_engine.wheel_key("1.0", plain), bootstrap_engine.wheel_key("1.1", plain)}
    values = {**dict.fromkeys(plain, "x"), "FORGELM_BUILD_MODE": "portable", "FORGELM_BUILD_CUDA": "1"}
    keys |= {bootstrap_engine.wheel_key("1.0", {**plain, name: value}) for name, value in values.items()}
    assert bootstrap_engine.wheel_key("1.0", dict(plain)) in keys
    processor.append("avx512f")
    keys.add(bootstrap_engine.wheel_key("1.0", plain))
    assert len(keys) == 3 + len(plain)


def test_other_cards_need_another_wheel(processor: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, "")
    with_cuda = {**plain, "FORGELM_BUILD_CUDA": "1"}
    before = [bootstrap_engine.wheel_key("1.0", build) for build in (plain, with_cuda)]
    pins = bootstrap_cuda.read_pins()
    monkeypatch.setattr(bootstrap_cuda, "read_pins", lambda: {**pins, "architectures": ["75", "86"]})
    after = [bootstrap_engine.wheel_key("1.0", build) for build in (plain, with_cuda)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False]


def test_amx_is_left_out_where_the_processor_announces_it(processor: list[str]) -> None:
    native = bootstrap_mode.MODES["native"]
    assert not bootstrap_engine.flags_for(native), "an older compiler would refuse the flag"
    processor.append("amx_int8")
    assert "-mno-amx-int8" in bootstrap_engine.flags_for(native)
    assert not bootstrap_engine.flags_for(bootstrap_mode.MODES["portable"])
    processor.append("avx512_fp16")
    assert bootstrap_engine.flags_for(native).endswith("-mno-avx512fp16")


def test_a_compiler_that_knows_no_such_flag_is_not_given_it() -> None:
    assert bootstrap_engine.accepted("-mno-such-thing -O1", "gcc") == "-O1"


def test_a_portable_wheel_is_the_same_for_every_processor(processor: list[str]) -> None:
    plain = dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, "")
    portable = {**plain, "FORGELM_BUILD_MODE": "portable"}
    before = bootstrap_engine.wheel_key("1.0", portable)
    native = bootstrap_engine.wheel_key("1.0", {**plain, "FORGELM_BUILD_MODE": "native"})
    assert native == bootstrap_engine.wheel_key("1.0", plain), "native is what is built unasked"
    processor.append("avx512f")
    assert bootstrap_engine.wheel_key("1.0", portable) == before != native


@pytest.mark.parametrize(("mode", "cuda"), [("fast", ""), ("native", "1"), ("dev", "1")])
def test_a_build_that_there_is_not_is_refused(mode: str, cuda: str) -> None:
    build = {**dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, ""), "FORGELM_BUILD_MODE": mode}
    with pytest.raises(bootstrap_run.SetupError, match=f"^MODE={mode} "):
        bootstrap_mode.mode_of({**build, "FORGELM_BUILD_CUDA": cuda})


def test_only_instruction_sets_count_as_processor_features() -> None:
    flags = ["fpu", "sse4_1", "avx2", "vaes", "ibrs", "md_clear", "avx512_vnni", "tsc"]
    chosen = [flag for flag in flags if bootstrap_engine.CPU_FEATURE.match(flag)]
    assert chosen == ["sse4_1", "avx2", "vaes", "avx512_vnni"]


def test_progress_in_a_log_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = bootstrap_run.Progress("llama.cpp", 200.0)
    for done in range(1, 141):
        now += 1.0
        progress.update(done, 140)
        progress.tick()
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[0] == "llama.cpp 16/140, 0:16, about 2:04 left"
    assert lines[-1] == "llama.cpp 140/140, 2:20"


def test_progress_on_a_terminal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    progress = bootstrap_run.Progress("llama.cpp", 200.0)
    progress.tick()
    progress.update(7, 140)
    progress.tick()
    progress.close()
    lines = capsys.readouterr().out.split("\r\x1b[K")
    assert lines == ["", "llama.cpp, 0:00, about 3:20 left", "llama.cpp 7/140, 0:00, about 3:20 left\n"]


# The lock files.


def locks() -> dict[str, dict[str, str]]:
    names = ("requirements.lock", "requirements-dev.lock")
    return {name: bootstrap.parse_lock((ROOT / name).read_text()) for name in names}


def test_lock_files_pin_and_hash_everything_and_name_no_place() -> None:
    for name, blocks in locks().items():
        text = (ROOT / name).read_text()
        assert "make lock" in text[:200]
        assert "://" not in text
        assert not re.search(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", text, re.MULTILINE)
        assert all("--hash=sha256:" in block for block in blocks.values())


def test_lock_files_agree_and_cover_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime, dev = locks().values()
    assert runtime.items() <= dev.items()
    for wanted, blocks in (
        (project["dependencies"], runtime),
        (project["optional-dependencies"]["dev"], dev),
    ):
        for requirement in map(Requirement, wanted):
            block = blocks[canonicalize_name(requirement.name)]
            version = block.partition("==")[2].split(maxsplit=1)[0]
            assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: make lock"
