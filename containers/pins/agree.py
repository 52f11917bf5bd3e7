"""Whether the files that repeat a pin agree with it, and whether any other file repeats one. Without network."""

import base64
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from containers.pins import NAME, Pins, PinsError, read, read_raw
from containers.pins.nixpath import store_path
from forgelm.bootstrap import parse_lock

LIB = "forgelm/llama/lib.py"
LOCKS = ("requirements.lock", "requirements-dev.lock")
COMMIT_LETTERS = 9
"""Of llama.cpp's commit, wherever it is shown to people."""

MAY_STATE = frozenset(("containers/pins.json", "pyproject.toml", "flake.lock", "compose.yaml", LIB, *LOCKS))
"""Files that have to repeat a pin; each is compared with it here."""
RECORDS = frozenset(("bench/LOG.md", "containers/LOG.md", "CHANGELOG.md"))
"""Dated logs: what was measured with which version stays true."""


def problems(root: Path) -> list[str]:
    """One line for each disagreement, none if all is well. Raises `PinsError` for pins that can't be read."""
    return [*repeated(root), *elsewhere(root)]


def repeated(root: Path) -> list[str]:
    """The same of the files alone that have to repeat a pin."""
    pins = read(root)
    return [
        *within(pins),
        *in_pyproject(root, pins),
        *in_locks(root, pins),
        *in_lib(root, pins),
        *in_flake_lock(root, pins),
        *in_python_wheels(root),
        *in_compose(root, pins),
    ]


def within(pins: Pins) -> Iterator[str]:
    """What the pins say about each other."""
    sdist = pins.llama_cpp_python
    if sdist.sdist != f"{NAME.replace('-', '_')}-{sdist.version}.tar.gz":
        yield f"pins.json: the sdist {sdist.sdist} isn't that of version {sdist.version}"
    computed = store_path(pins.nixpkgs.nar_hash)
    if computed != pins.nixpkgs.store_path:
        yield f"pins.json: nixpkgs.narHash gives {computed}, and storePath is {pins.nixpkgs.store_path}"
    nvcc = pins.cuda.wheels["nvidia-cuda-nvcc"].version
    if not nvcc.startswith(f"{pins.cuda.toolkit}."):
        yield f"pins.json: cuda.toolkit is {pins.cuda.toolkit}, and nvidia-cuda-nvcc is {nvcc}"
    dotted = [f"{number[:-1]}.{number[-1]}" for number in pins.cuda.architectures]
    if pins.cuda.capability not in dotted:
        yield f"pins.json: cuda.capability {pins.cuda.capability} is none of architectures {', '.join(dotted)}"


def in_pyproject(root: Path, pins: Pins) -> Iterator[str]:
    """The dependency that users of the package get."""
    dependencies = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    stated = [text for text in dependencies if text.startswith(NAME)]
    if stated != [f"{NAME}=={pins.llama_cpp_python.version}"]:
        yield f"pyproject.toml: {', '.join(stated) or 'nothing'} where pins.json has {pins.llama_cpp_python.version}"


def in_locks(root: Path, pins: Pins) -> Iterator[str]:
    """Version and hash in both lock files: the sdist's alone, so that nothing else is ever installed."""
    for lock in LOCKS:
        block = parse_lock((root / lock).read_text()).get(NAME, "")
        version, hashes = lock_entry(block)
        if version != pins.llama_cpp_python.version:
            yield f"{lock}: {NAME} {version or 'is missing'}, and pins.json has {pins.llama_cpp_python.version}"
        if hashes != {pins.llama_cpp_python.sha256}:
            yield f"{lock}: {NAME}'s hash isn't the one of pins.json alone"


def lock_entry(block: str) -> tuple[str, set[str]]:
    """Version and sha256s of a package's lines in a lock file."""
    version = re.search(r"==([^\s;\\]+)", block)
    return version[1] if version else "", set(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))


def in_lib(root: Path, pins: Pins) -> Iterator[str]:
    """The constants from which the server knows its llama.cpp's commit."""
    text = (root / LIB).read_text()
    wanted = {"BINDINGS": pins.llama_cpp_python.version, "COMMIT": pins.llama_cpp.commit[:COMMIT_LETTERS]}
    for name, value in wanted.items():
        stated = re.findall(rf'^{name} = "(.*)"$', text, re.MULTILINE)
        if stated != [value]:
            yield f"{LIB}: {name} is {', '.join(stated) or 'missing'}, and pins.json has {value}"


def in_flake_lock(root: Path, pins: Pins) -> Iterator[str]:
    """The flake's own lock, where there is a flake."""
    path = root / "flake.lock"
    if not path.exists():
        return
    node = json.loads(path.read_text())["nodes"]["nixpkgs"]
    stated = (node["original"].get("ref"), node["locked"].get("rev"), node["locked"].get("narHash"))
    wanted = {"branch": pins.nixpkgs.branch, "rev": pins.nixpkgs.rev, "narHash": pins.nixpkgs.nar_hash}
    for (name, value), found in zip(wanted.items(), stated, strict=True):
        if value != found:
            yield f"flake.lock: {name} is {found}, and pins.json has {value}"


def in_python_wheels(root: Path) -> Iterator[str]:
    """The flake's Python packages: their versions are requirements.lock's, so their files have to be among its."""
    lock = parse_lock((root / LOCKS[0]).read_text())
    for name, wheel in read_raw(root).get("python", {}).get("wheels", {}).items():
        if wheel["sha256"] not in lock_entry(lock.get(name, ""))[1]:
            yield f"pins.json: {LOCKS[0]} has no file of {name} with the hash of python.wheels (make nix-wheels)"


def in_compose(root: Path, pins: Pins) -> Iterator[str]:
    """The images of programs beside ours, where there is a compose file."""
    path = root / "compose.yaml"
    stated = re.findall(r"^\s+image: ([\w.-]+/\S+)$", path.read_text(), re.MULTILINE) if path.exists() else []
    for reference in stated:
        if reference not in pins.images.values():
            yield f"compose.yaml: {reference} is none of pins.json's images"


def elsewhere(root: Path) -> Iterator[str]:
    """Committed files that state a pin and aren't among those compared above."""
    needles = distinctive(root)
    for name in committed(root):
        if name in MAY_STATE | RECORDS:
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # a picture, or deleted and not committed yet
        for what, forms in needles.items():
            if line := line_with(text, forms):
                yield f"{name}:{line}: states {what}, which belongs in containers/pins.json alone"


def line_with(text: str, forms: tuple[str, ...]) -> int:
    """The first line that has one of these in it, not as a part of something longer; 0 without one."""
    there = [re.escape(form) for form in forms if form in text]
    found = re.search(rf"(?<![\w.])v?(?:{'|'.join(there)})(?!\w|\.\d)", text) if there else None
    return text.count("\n", 0, found.start()) + 1 if found else 0


def distinctive(root: Path) -> Mapping[str, tuple[str, ...]]:
    """What the pin is → how it can be written. Versions that other things have too ("0.5.0", "13.0") are left out."""
    pins = read(root)
    sdist, engine, nixpkgs = pins.llama_cpp_python, pins.llama_cpp, pins.nixpkgs
    found = {
        f"{NAME}'s version": (sdist.version,),
        f"{NAME}'s hash": (sdist.sha256, sri(sdist.sha256)),
        "llama.cpp's commit": (engine.commit, engine.commit[:COMMIT_LETTERS], engine.commit[:7]),
        "nixpkgs' revision": (nixpkgs.rev, nixpkgs.rev[:12], nixpkgs.rev[:7]),
        "nixpkgs' hash": (nixpkgs.nar_hash, nixpkgs.store_path),
    }
    for name, wheel in pins.cuda.wheels.items():
        found[f"{name}'s version"] = (wheel.version,)
        found[f"{name}'s hash"] = (wheel.sha256, sri(wheel.sha256))
    for name, reference in pins.images.items():
        found[f"{name}'s image"] = (reference, reference.rpartition("/")[2])
    return found


def sri(sha256: str) -> str:
    """A hash as Nix writes it."""
    return f"sha256-{base64.b64encode(bytes.fromhex(sha256)).decode()}"


def committed(root: Path) -> list[str]:
    """Paths of the files that Git knows in that tree. Raises `PinsError` where there is no repository."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PinsError(f"git ls-files: {done.stderr.strip()}")
    return done.stdout.split("\0")[:-1]
