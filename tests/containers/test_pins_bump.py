"""`make bump`: the pin set everywhere, what changed told, and the working tree left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.pins import NAME, ROOT, PinsError, agree, api, bump, read, sdist
from containers.pins.pinning import pin
from forgelm.llama import lib
from tests.containers import pinned
from tests.containers.pinned import Site

NEW = "9.9.9"
COMMIT = "ab" * 20
CONTENTS = sdist.Contents(NEW, f"{pinned.FILE}-{NEW}.tar.gz", "cd" * 32, 12345, COMMIT, "9.8.7", ())
MAKEFILE = """
setup:
	@mkdir -p .venv/bin .venv/lib/python3/site-packages/llama_cpp/lib
	@printf '#!/bin/sh\\nexec "$(PYTHON)" "$$@"\\n' > .venv/bin/python && chmod +x .venv/bin/python
	@head -c 2000000 /dev/zero > .venv/lib/python3/site-packages/llama_cpp/lib/libllama.so
"""
CONTRACT_TEST = """
import json, pathlib
VERSION = json.loads(pathlib.Path("containers/pins.json").read_text())["llama_cpp_python"]["version"]
def test_always(): pass
def test_never(): assert False
def test_only_before(): assert VERSION != "9.9.9"
def test_only_after(): assert VERSION == "9.9.9"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return pinned.make_tree(tmp_path / "clone")


# ---- setting the pin -------------------------------------------------------------------------------------------------


def test_the_pin_is_set_everywhere_and_nothing_else_changes(tree: Path) -> None:
    pin(tree, CONTENTS)
    pins = read(tree)
    assert (pins.llama_cpp_python.version, pins.llama_cpp.commit) == (NEW, COMMIT)
    assert agree.problems(tree) == []
    changed = pinned.git(tree, "diff", "--numstat").splitlines()
    lines = {name: int(added) for added, _, name in (line.split("\t") for line in changed)}
    assert lines == {"containers/pins.json": 6, "pyproject.toml": 1, agree.LIB: 2, **dict.fromkeys(agree.LOCKS, 2)}


@pytest.mark.parametrize("name", ["pyproject.toml", *agree.LOCKS, agree.LIB])
def test_a_file_that_looks_different_is_not_guessed_at(tree: Path, name: str) -> None:
    text = (tree / name).read_text()
    (tree / name).write_text(text.replace(f"{NAME}==", f"{NAME} ==").replace("COMMIT = ", "COMMIT: str = "))
    with pytest.raises(PinsError, match=f"{name}: 0 places match"):
        pin(tree, CONTENTS)


# ---- what changed ----------------------------------------------------------------------------------------------------

BEFORE = '''
class point(ctypes.Structure):
    """Text."""

    _fields_ = [("x", ctypes.c_int32), ("y", ctypes.c_float)]

class both(ctypes.Union):
    pass

KIND_A = 1
KIND_B: int = 2
_private = 3

@ctypes_function("llama_gone", [], None)
def llama_gone(): ...

@ctypes_function("llama_decode", [ctypes.c_void_p, point], ctypes.c_int32)
def llama_decode(ctx, p, /): ...

def helper(): ...
'''
AFTER = (
    BEFORE.replace("ctypes.c_float", "ctypes.c_double")
    .replace("llama_gone", "llama_come")
    .replace("ctypes.c_void_p, point", "ctypes.c_void_p")
    .replace("KIND_A = 1", "KIND_A = 7")
    .replace("_private = 3", "_private = 4")
)


def test_what_changed_between_two_bindings() -> None:
    found = api.changes(api.declarations(BEFORE), api.declarations(AFTER), {"llama_decode": ("forgelm/x.py",)})
    assert [str(change) for change in found] == [
        "! llama_decode  <- forgelm/x.py\n    was [ctypes.c_void_p, point] -> ctypes.c_int32\n"
        "    is  [ctypes.c_void_p] -> ctypes.c_int32",
        "! KIND_A\n    was 1\n    is  7",
        "+ llama_come: [] -> None",
        "- llama_gone: [] -> None",
        "! point\n    - ('y', ctypes.c_float)\n    + ('y', ctypes.c_double)",
    ]


def test_a_structure_is_used_through_what_takes_it() -> None:
    used = api.by_way_of(
        api.declarations(BEFORE), {"llama_decode": ("forgelm/x.py",), "llama_unknown": ("forgelm/y.py",)}
    )
    assert used == {"llama_decode": ("forgelm/x.py",), "point": ("forgelm/x.py",)}


def test_the_real_bindings_are_read() -> None:
    """Everything that ForgeLM calls is among what would be compared."""
    source = Path(lib.L.__file__).read_text()
    declared = api.declarations(source)
    assert "n_ctx" in declared["llama_context_params"]
    assert declared["llama_decode"].endswith("-> ctypes.c_int32")
    used = api.used_names(ROOT / "forgelm")
    assert "forgelm/llama/context.py" in used["llama_decode"]
    calls = {name for name, files in used.items() if name.startswith("llama_") and "forgelm/llama/context.py" in files}
    assert len(calls & declared.keys()) > 10


def test_functions_of_a_header_without_comments() -> None:
    header = """
    // LLAMA_API void in_a_comment(void);
    /* LLAMA_API void nor_here(void); */
    LLAMA_API int32_t llama_decode(
            struct llama_context * ctx, // which
              struct llama_batch   batch);
    DEPRECATED(LLAMA_API void llama_old(void), "use another");
    """
    assert api.header_functions(header) == {
        "llama_decode": "int32_t llama_decode( struct llama_context * ctx, struct llama_batch batch)",
        "llama_old": "void llama_old(void)",
    }


def test_sizes_of_libraries() -> None:
    lines = list(api.size_report({"libllama.so": 2_000_000, "libold.so": 1}, {"libllama.so": 2_500_000}))
    assert lines == ["  libllama.so: 2.00 -> 2.50 MB", "  libold.so: 0.00 -> none MB"]


# ---- sdists ----------------------------------------------------------------------------------------------------------


def test_what_is_in_an_sdist(tmp_path: Path) -> None:
    content = pinned.make_sdist(NEW, "1.2.3", COMMIT)
    path = tmp_path / f"{pinned.FILE}-{NEW}.tar.gz"
    path.write_bytes(content)
    expected = (NEW, path.name, pinned.sha256(content), len(content), COMMIT, "1.2.3", ("numpy",))
    assert sdist.look_into(path) == expected
    assert (sdist.unpack(path, tmp_path / "out") / api.HEADER).read_text() == pinned.HEADER


def test_an_sdist_without_a_commit(tmp_path: Path) -> None:
    path = tmp_path / f"{pinned.FILE}-{NEW}.tar.gz"
    path.write_bytes(pinned.make_sdist(NEW, "1.2.3", "ref: refs/heads/master"))
    with pytest.raises(PinsError, match="is no commit but 'ref: refs/heads/master'"):
        sdist.look_into(path)


def test_llama_cpp_from_before_it_had_versions() -> None:
    assert sdist.cmake_version("project(llama.cpp)") == sdist.UNVERSIONED


# ---- the whole trial -------------------------------------------------------------------------------------------------


def test_every_file_of_the_contract_is_there() -> None:
    assert [name for name in bump.CONTRACT if not (ROOT / name).is_file()] == []
    assert len(set(bump.CONTRACT)) == len(bump.CONTRACT)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with pinned.serving() as site:
        for name, value in {**pinned.environment(f"{site.url}/simple"), "PYTHON": sys.executable}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
        yield site


@pytest.fixture
def trial(tree: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a Makefile and a contract of one file, and two sdists on the index."""
    (tree / "Makefile").write_text(MAKEFILE)
    (tree / "tests").mkdir()
    (tree / "tests" / "test_contract.py").write_text(CONTRACT_TEST)
    (tree / ".gitignore").write_text("build/\n.venv/\n__pycache__/\n")
    (tree / "pyproject.toml").write_text(
        f'[project]\ndependencies = ["{NAME}=={read(tree).llama_cpp_python.version}"]\n'
    )
    pinned.commit(tree)
    old = read(tree).llama_cpp_python.version
    more = pinned.HEADER.replace("llama_batch b", "llama_batch b, int n")
    site.project(
        NAME,
        site.sdist(old, pinned.make_sdist(old, "1.0.0", "12" * 20, cuda="// of cuBLAS(1)")),
        site.sdist(
            NEW, pinned.make_sdist(NEW, "1.1.0", COMMIT, header=more, cuda="// of cuBLAS(1)\ncuMemMap(p); cuNew(q);")
        ),
    )
    monkeypatch.setattr(bump, "CONTRACT", ("tests/test_contract.py",))
    return tree


def state(root: Path) -> dict[str, bytes]:
    """Every file of a clone outside `build`, Git's own included."""
    outside = (path for path in root.rglob("*") if path.is_file() and "build" not in path.relative_to(root).parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in outside}


def test_a_trial_from_end_to_end(trial: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (trial / "Makefile").write_text(MAKEFILE + "# not committed\n")
    before = state(trial)
    assert bump.run(trial, NEW) == 1
    said = capfd.readouterr()
    old = read(trial).llama_cpp_python.version
    assert f"llama-cpp-python {old} -> {NEW}; llama.cpp 1.0.0 -> 1.1.0" in said.out
    assert "Bindings (ctypes): 0 changed of 1, 0 of them used by ForgeLM" in said.out
    assert "llama.h, functions: 1 changed of 1" in said.out
    assert "bootstrap_cuda.DRIVER_CALLS lacks cuNew: the CUDA build wouldn't link" in said.out
    assert "  libllama.so: 2.00 -> 2.00 MB" in said.out
    results = [line.strip() for line in said.out.splitlines() if line.startswith("  ") and "test_contract::" in line]
    assert results == [
        "fails now: tests.test_contract::test_only_before",
        "fails with both: tests.test_contract::test_never",
        "passes now: tests.test_contract::test_only_after",
    ]
    assert "What isn't committed" in said.err
    assert state(trial) == before
    patch = trial / "build" / f"bump-{NEW}" / bump.PATCH
    assert f"git apply {patch}" in said.out
    pinned.git(trial, "apply", str(patch))
    assert read(trial).llama_cpp_python.version == NEW
    assert agree.repeated(trial) == []


def test_a_file_of_the_contract_that_was_renamed(trial: Path) -> None:
    (trial / "tests" / "test_contract.py").rename(trial / "tests" / "test_other.py")
    with pytest.raises(PinsError, match=r"is every file of bump.CONTRACT there"):
        bump.set_up_and_test(trial)


def test_tests_that_cannot_be_imported_any_more(trial: Path) -> None:
    (trial / "tests" / "test_contract.py").write_text("from nowhere import llama_gone\n")
    outcome = bump.set_up_and_test(trial)
    assert (outcome.passed, len(outcome.failed)) == (0, 1)
    assert "test_contract" in outcome.failed[0]


def test_only_what_fails_anew_is_a_failure() -> None:
    before, after = bump.Outcome(5, ("a", "b"), 1.0), bump.Outcome(5, ("b",), 1.0)
    assert not bump.worse(before, after)
    assert bump.worse(after, before)
    assert bump.worse(before, bump.Outcome(0, (), 1.0)), "nothing ran"


def test_a_set_up_that_fails(trial: Path) -> None:
    (trial / "Makefile").write_text("setup:\n\t@exit 3\n")
    with pytest.raises(PinsError, match="make setup failed"):
        bump.set_up_and_test(trial)


def test_a_version_that_there_isnt(trial: Path) -> None:
    result = pinned.run_pins(trial, "bump", "9.9.8", **os.environ)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"pip can't fetch {NAME} 9.9.8: ")
    assert result.stderr.count("\n") == 1


def test_a_version_that_is_written_in_another_way(trial: Path) -> None:
    """pip takes 9.9.9.0 for 9.9.9, and its file has the other name."""
    result = pinned.run_pins(trial, "bump", f"{NEW}.0", **os.environ)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"pip has no {pinned.FILE}-{NEW}.0.tar.gz: {NEW}.0 is another way to write a version it has\n"
    )


def test_a_disk_that_cannot_be_written_is_one_line(trial: Path) -> None:
    (trial / "build").write_text("a file where the folder has to be")
    result = pinned.run_pins(trial, "bump", NEW, **os.environ)
    assert (result.returncode, result.stdout) == (1, "")
    assert str(trial / "build") in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_interrupted_trial_starts_afresh(trial: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C reaches the set-up under it too; once that was forty lines of traceback."""
    (trial / "Makefile").write_text("setup:\n\t@touch reached; sleep 60\n")
    pinned.commit(trial)
    command = [sys.executable, "-m", "containers.pins", "--root", str(trial), "bump", NEW]
    scratch = trial / "build" / f"bump-{NEW}"
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(scratch.glob("*/reached")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "Stopped; the next run starts afresh."
    assert "Traceback" not in errors
    (trial / "Makefile").write_text(MAKEFILE)
    pinned.commit(trial)
    assert bump.run(trial, NEW) == 1
    assert not list(scratch.glob("*/reached"))
    assert "fails now: tests.test_contract::test_only_before" in capfd.readouterr().out


@pytest.mark.parametrize("version", ["", "..", "1/../../..", "newest"])
def test_what_is_no_version_is_refused_before_anything_is_deleted(tree: Path, version: str) -> None:
    with pytest.raises(PinsError, match="is no version"):
        bump.run(tree, version)
    assert not (tree / "build").exists()


def test_the_pinned_version_itself(tree: Path) -> None:
    version = json.loads((tree / "containers" / "pins.json").read_text())["llama_cpp_python"]["version"]
    with pytest.raises(PinsError, match="is what is pinned"):
        bump.run(tree, version)
