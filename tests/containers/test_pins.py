"""Pins, the files that repeat them, and what is installed: the same everywhere, and a disagreement is one line."""

import base64
import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from containers.pins import NAME, ROOT, PinsError, agree, nixpath, pins_path, read
from forgelm import bootstrap_cuda
from forgelm.bootstrap import parse_lock
from forgelm.llama import lib
from tests.containers import pinned

PINS = read(ROOT)
SDIST, ENGINE, NIXPKGS = PINS.llama_cpp_python, PINS.llama_cpp, PINS.nixpkgs
LOCK, DEV_LOCK = agree.LOCKS
OTHER = "f" * 64
NVCC = PINS.cuda.wheels["nvidia-cuda-nvcc"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pinned.make_tree(tmp_path_factory.mktemp("pins"))


@pytest.fixture
def tree(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "tree")


def test_this_clone_agrees_with_its_pins() -> None:
    assert agree.problems(ROOT) == []


def test_what_is_installed_is_what_is_pinned() -> None:
    build = lib.build_info()
    assert metadata.version(NAME) == build.bindings == SDIST.version
    assert build.version.removesuffix("-dev") == ENGINE.version
    assert ENGINE.commit.startswith(build.commit)


def test_cuda_is_fetched_by_the_pinned_hashes() -> None:
    wanted = parse_lock(bootstrap_cuda.requirements("build", "run", "check"))
    entries = {name: agree.lock_entry(block) for name, block in wanted.items()}
    assert entries == {name: (wheel.version, {wheel.sha256}) for name, wheel in PINS.cuda.wheels.items()}
    compiling = parse_lock(bootstrap_cuda.requirements(bootstrap_cuda.BUILD))
    assert "nvidia-cuda-nvcc" in compiling
    assert not compiling.keys() & parse_lock(bootstrap_cuda.requirements(bootstrap_cuda.RUN)).keys()


def test_a_copy_without_git_is_one_line(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    result = pinned.run_pins(tree, "check", GIT_CEILING_DIRECTORIES=str(tree.parent))
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("git ls-files: ")


def test_a_copy_agrees(tree: Path) -> None:
    result = pinned.run_pins(tree, "check")
    assert (result.returncode, result.stderr) == (0, "")


REPEATED = {
    "pyproject": ("pyproject.toml", f"{NAME}=={SDIST.version}", f"{NAME}==9.9.9", "pyproject.toml: "),
    "pyproject, loosely": ("pyproject.toml", f"{NAME}=={SDIST.version}", f"{NAME}>={SDIST.version}", "pyproject"),
    "lock, version": (LOCK, f"{NAME}=={SDIST.version}", f"{NAME}==9.9.9", f"{LOCK}: {NAME} 9.9.9"),
    "lock, hash": (LOCK, SDIST.sha256, OTHER, f"{LOCK}: {NAME}'s hash"),
    "lock, another file": (LOCK, SDIST.sha256, f"{SDIST.sha256} \\\n    --hash=sha256:{OTHER}", f"{LOCK}: {NAME}'s"),
    "dev lock, version": (DEV_LOCK, f"{NAME}=={SDIST.version}", f"{NAME}==9.9.9", f"{DEV_LOCK}: {NAME} 9.9.9"),
    "dev lock, hash": (DEV_LOCK, SDIST.sha256, OTHER, f"{DEV_LOCK}: {NAME}'s hash"),
    "constant, version": (agree.LIB, f'BINDINGS = "{SDIST.version}"', 'BINDINGS = "9.9.9"', "BINDINGS is 9.9.9"),
    "constant, commit": (agree.LIB, ENGINE.commit[:9], "123456789", "COMMIT is 123456789"),
    "constant, gone": (agree.LIB, "COMMIT = ", "REVISION = ", "COMMIT is missing"),
    "flake, revision": ("flake.lock", NIXPKGS.rev, "a" * 40, "flake.lock: rev is aaaa"),
    "flake, hash": ("flake.lock", NIXPKGS.nar_hash, "sha256-other", "flake.lock: narHash is sha256-other"),
    "flake, branch": ("flake.lock", NIXPKGS.branch, "nixos-unstable", "flake.lock: branch is nixos-unstable"),
    "sdist's name": ("containers/pins.json", SDIST.sdist, "llama_cpp_python-9.9.9.tar.gz", "isn't that of version"),
    "store path": ("containers/pins.json", NIXPKGS.store_path, f"/nix/store/{'0' * 32}-source", "narHash gives"),
    "toolkit": ("containers/pins.json", '"toolkit": "13', '"toolkit": "12', "cuda.toolkit is 12"),
    "capability": ("containers/pins.json", '"capability": "8', '"capability": "7', "cuda.capability 7"),
}


@pytest.mark.parametrize(("file", "stated", "instead", "said"), REPEATED.values(), ids=REPEATED)
def test_a_disagreement_is_one_line(tree: Path, file: str, stated: str, instead: str, said: str) -> None:
    text = (tree / file).read_text()
    assert stated in text
    (tree / file).write_text(text.replace(stated, instead))
    (problem,) = agree.problems(tree)
    assert said in problem


def test_the_command_fails_with_that_line(tree: Path) -> None:
    (tree / "pyproject.toml").write_text((tree / "pyproject.toml").read_text().replace(SDIST.version, "9.9.9"))
    result = pinned.run_pins(tree, "check")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"pyproject.toml: {NAME}==9.9.9 where pins.json has {SDIST.version}\n"


def test_a_package_of_the_flake_that_the_lock_has_no_such_file_of(tree: Path) -> None:
    pinned.change_pins(tree, python={"wheels": {"httpx": {"tag": "py3-none-any", "sha256": OTHER}}})
    (problem,) = agree.problems(tree)
    assert "no file of httpx" in problem


def test_an_image_in_the_compose_file_that_is_not_pinned(tree: Path) -> None:
    images = [f"    image: {reference}\n" for reference in PINS.images.values()]
    (tree / "compose.yaml").write_text("".join([*images, "    image: forgelm:0.1.0\n"]))
    assert agree.problems(tree) == []
    (tree / "compose.yaml").write_text("    image: docker.io/grafana/grafana:0.0.1\n")
    assert agree.problems(tree) == ["compose.yaml: docker.io/grafana/grafana:0.0.1 is none of pins.json's images"]


STATED = {
    "version": (f"ForgeLM runs {NAME} {SDIST.version}.", f"states {NAME}'s version"),
    "version in a name": (f"llama_cpp_python-{SDIST.version}.tar.gz", f"states {NAME}'s version"),
    "hash": (f"sha256:{SDIST.sha256}", f"states {NAME}'s hash"),
    "hash for Nix": (agree.sri(SDIST.sha256), f"states {NAME}'s hash"),
    "commit": (f"llama.cpp at {ENGINE.commit[:9]}", "states llama.cpp's commit"),
    "revision": (f"github:NixOS/nixpkgs/{NIXPKGS.rev}", "states nixpkgs' revision"),
    "compiler": (f"nvcc {NVCC.version}", "states nvidia-cuda-"),
    "image": ("docker.io/prom/prometheus:v3.99.1", "states prometheus's image"),
}


@pytest.mark.parametrize(("text", "said"), STATED.values(), ids=STATED)
def test_no_other_file_may_state_a_pin(tree: Path, text: str, said: str) -> None:
    pinned.change_pins(tree, images={"prometheus": "docker.io/prom/prometheus:v3.99.1"})
    (tree / "README.md").write_text(f"A title\n\n{text}\n")
    assert agree.problems(tree) == [], "a file that isn't committed is nobody's business"
    pinned.git(tree, "add", "README.md")
    found = agree.problems(tree)
    assert found
    assert all(problem.startswith("README.md:3: ") for problem in found)
    assert any(said in problem for problem in found)


def test_what_only_looks_like_a_pin_may_be_stated(tree: Path) -> None:
    longer = f"{SDIST.version}7 1{SDIST.version} {SDIST.version}.1 {ENGINE.version} {PINS.cuda.toolkit}"
    (tree / "README.md").write_text(longer)
    (tree / "bench").mkdir()
    (tree / "bench" / "LOG.md").write_text(f"measured with {SDIST.version}")
    (tree / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    pinned.git(tree, "add", "--all")
    (tree / "README.md").rename(tree / "ELSEWHERE.md")
    assert agree.problems(tree) == []


WRONG = {
    "a short hash": ("sha256", "abc", "llama_cpp_python.sha256"),
    "an unknown key": ("md5", "abc", "md5"),
    "a version that is none": ("version", "newest", "llama_cpp_python.version"),
    "no size": ("bytes", 0, "llama_cpp_python.bytes"),
}


@pytest.mark.parametrize(("key", "value", "said"), WRONG.values(), ids=WRONG)
def test_pins_that_make_no_sense_are_one_line(tree: Path, key: str, value: object, said: str) -> None:
    pinned.change_pins(tree, llama_cpp_python={key: value})
    with pytest.raises(PinsError, match=said) as error:
        agree.problems(tree)
    assert str(error.value).startswith("containers/pins.json: ")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_json_is_one_line(tree: Path) -> None:
    pins_path(tree).write_text('{"llama_cpp_python": ')
    result = pinned.run_pins(tree, "check")
    assert result.returncode == 1
    assert result.stderr.startswith("containers/pins.json: ")
    assert result.stderr.count("\n") == 1


def test_the_file_is_as_the_scripts_write_it() -> None:
    """`make bump` and `make nix-wheels` rewrite it: their patches must show what they change and nothing else."""
    assert pins_path(ROOT).read_text() == json.dumps(json.loads(pins_path(ROOT).read_text()), indent=2) + "\n"


def test_store_paths_are_nixs() -> None:
    """Nix's own examples: the empty string's hash in base 32, and the store path of this very nixpkgs."""
    empty = base64.b64decode("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
    assert nixpath.base32(empty) == "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73"
    assert nixpath.store_path(NIXPKGS.nar_hash) == NIXPKGS.store_path
    changed = NIXPKGS.nar_hash.replace("c", "d", 1)
    assert nixpath.store_path(changed) != NIXPKGS.store_path
