"""The pins against what can be downloaded, as a table; and what is newer.

Nothing here is a guess: a row says how it was looked at, and one that couldn't be says why. Only a mismatch is
an error.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import rich.box
import rich.console
import rich.markup
import rich.table
from packaging.version import Version

from containers.pins import NAME, PinsError, Wheel, agree, index, nixpath, read, sdist
from containers.pins.index import File, Index, Unreachable
from containers.pins.registry import Registry
from forgelm.bootstrap import parse_lock

ASKED_AT_ONCE = 6
GIT_SECONDS = 30
COLUMNS = 160
"""Of the table, where it isn't shown on a terminal."""
NIXPKGS = "https://github.com/NixOS/nixpkgs"


class Row(NamedTuple):
    """One line of the table."""

    pin: str
    have: str
    newest: str
    """"" where it isn't known."""
    how: str
    """How it was verified, or why it wasn't."""
    wrong: bool = False


def rows(root: Path, offer: Index, *, download: bool) -> Iterator[Row]:
    """The table of that tree, row by row as they are known. Raises `PinsError` for pins that can't be read.

    `download` also fetches what an index's own hashes are good enough for otherwise: CUDA's wheels, 530 MB.
    """
    pins = read(root)
    yield from engine_rows(root, offer)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        wheels = pins.cuda.wheels
        yield from pool.map(lambda name: wheel_row(name, wheels[name], offer, pins.cuda.toolkit), wheels)
    if download:
        yield download_row(pins.cuda.wheels)
    yield nixpkgs_row(root)
    yield lock_row(root, offer)
    yield from (image_row(name, Registry(reference)) for name, reference in pins.images.items())
    disagreements = agree.problems(root)
    yield from (Row("agreement", "", "", problem, wrong=True) for problem in disagreements)
    if not disagreements:
        yield Row("agreement", "", "", "every file that repeats a pin says the same")


def engine_rows(root: Path, offer: Index) -> Iterator[Row]:
    """The sdist: downloaded, weighed and opened."""
    pins = read(root)
    pinned, engine = pins.llama_cpp_python, pins.llama_cpp
    newer = newest_of(offer, NAME)
    names = (NAME, "llama.cpp version", "llama.cpp commit")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = sdist.look_into(sdist.fetch(pinned.version, Path(scratch)))
        except PinsError as error:
            yield from (Row(name, "", "", f"not verified: {error}") for name in names)
            return
    wrong = [
        f"{what} is {there}, not {here}"
        for what, here, there in (("sha256", pinned.sha256, found.sha256), ("size", pinned.bytes, found.size))
        if here != there
    ]
    how = "; ".join(wrong) or f"downloaded: sha256 and {found.size:,} bytes"
    yield Row(names[0], pinned.version, newer, how, bool(wrong))
    yield compared(names[1], engine.version, found.llama_cpp, "LLAMA_VERSION in the sdist")
    yield compared(names[2], engine.commit[: agree.COMMIT_LETTERS], found.commit, "HEAD of the sdist's llama.cpp")


def compared(pin: str, here: str, there: str, how: str) -> Row:
    """A row for two texts that have to be equal, or the second the longer form of the first."""
    same = there.startswith(here)
    return Row(pin, here, "", how if same else f"{how} is {there}", not same)


def newest_of(offer: Index, project: str, below: str = "") -> str:
    """The newest version that an index has, or "" while none answers."""
    try:
        return index.newest(offer.files(project), below)
    except Unreachable:
        return ""


def wheel_row(name: str, wheel: Wheel, offer: Index, toolkit: str) -> Row:
    """A part of CUDA against the index's own hashes. What is newer is so within the same generation."""
    return hash_row(name, wheel.version, {wheel.sha256}, offer, f"{toolkit.partition('.')[0]}.")


def hash_row(name: str, version: str, hashes: set[str], offer: Index, below: str = "") -> Row:
    """Whether the index has files of that version with these hashes."""
    try:
        files = offer.files(name)
    except Unreachable as error:
        return Row(name, version, "", f"not verified: {error}")
    newer = index.newest(files, below)
    problem = hash_problem(files, version, hashes)
    if not files or not any(file.sha256 for file in files):
        return Row(name, version, newer, f"not verified: {problem}")
    return Row(name, version, newer, problem or "the index's sha256", bool(problem))


def hash_problem(files: list[File], version: str, hashes: set[str]) -> str:
    """Why an index's files aren't those of the hashes; "" if they are."""
    if not files:
        return "no index has it"
    of_version = [file for file in files if file.version == Version(version)]
    if not of_version:
        return f"the index has no {version}"
    if not any(file.sha256 for file in of_version):
        return "the index tells no hashes"
    unknown = sorted(hashes - {file.sha256 for file in of_version})
    withdrawn = [file.name for file in of_version if file.yanked and file.sha256 in hashes]
    if unknown:
        return f"no file of {version} on the index has sha256 {unknown[0]}"
    return f"withdrawn from the index: {withdrawn[0]}" if withdrawn else ""


def download_row(wheels: dict[str, Wheel]) -> Row:
    """CUDA's wheels in full, through pip and its own check of their hashes."""
    wanted = "".join(f"{name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for name, wheel in wheels.items())
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(wanted)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--require-hashes", "--no-cache-dir", "--dest", scratch, "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        size = sum(path.stat().st_size for path in Path(scratch).glob("*.whl"))
        hashes = {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(scratch).glob("*.whl")}
    if hashes == {wheel.sha256 for wheel in wheels.values()}:
        return Row("CUDA's wheels", f"{len(wheels)}", "", f"downloaded: sha256 of each, {size / 1e6:.0f} MB")
    text = " ".join(done.stderr.split())
    mismatch = "DO NOT MATCH THE HASHES" in text
    # pip's advice to those who renew locks comes before the file and its two hashes.
    reason = text.rpartition("tampered with them. ")[2]
    return Row("CUDA's wheels", f"{len(wheels)}", "", f"{'' if mismatch else 'not verified: '}{reason[:300]}", mismatch)


def nixpkgs_row(root: Path) -> Row:
    """nixpkgs: the hash leads to the pinned store path (by Nix too where it is), and the branch's newest commit."""
    pinned = read(root).nixpkgs
    computed = nixpath.store_path(pinned.nar_hash)
    by_nix = nixpath.store_path_by_nix(pinned.nar_hash) if shutil.which("nix-store") else computed
    how = f"narHash gives {computed.rpartition('/')[2][:8]}…, {'by Nix too' if shutil.which('nix-store') else 'no Nix'}"
    wrong = pinned.store_path != computed or pinned.store_path != by_nix
    newest = branch_head(pinned.branch)
    have = f"{pinned.branch} {pinned.rev[:9]}"
    return Row("nixpkgs", have, newest[:9], how if newest else f"{how}; {NIXPKGS} can't be reached", wrong)


def branch_head(branch: str) -> str:
    """The newest commit of nixpkgs' branch; "" if GitHub can't be asked."""
    command = ["git", "ls-remote", "--exit-code", NIXPKGS, f"refs/heads/{branch}"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.partition("\t")[0] if done.returncode == 0 else ""


def lock_row(root: Path, offer: Index) -> Row:
    """Every hash of requirements.lock against the index, and how many packages there are newer."""
    lock = agree.LOCKS[0]
    entries = {name: agree.lock_entry(block) for name, block in parse_lock((root / lock).read_text()).items()}
    ask: Callable[[str], Row] = lambda name: hash_row(name, *entries[name], offer)  # noqa: E731
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = list(pool.map(ask, entries))
    newer = [f"{row.pin} {row.newest}" for row in found if row.newest and Version(row.newest) > Version(row.have)]
    wrong = [f"{row.pin}: {row.how}" for row in found if row.wrong]
    unasked = [f"{row.pin} {row.how}" for row in found if row.how.startswith("not verified") and not row.wrong]
    verified = len(found) - len(unasked)
    how = f"the index's sha256s of {verified}"
    if unasked:
        how += f"; {len(unasked)} not: {unasked[0]}"
    return Row(lock, f"{len(found)} packages", ", ".join(newer), "; ".join(wrong) or how, bool(wrong))


def image_row(name: str, image: Registry) -> Row:
    """Whether the registry has the image's tag."""
    try:
        digest, newest = image.digest(), image.newest()
    except Unreachable as error:
        return Row(f"image {name}", image.tag, "", f"not verified: {error}")
    how = f"the registry has it: {digest[:19]}…" if digest else f"the registry has no {image.tag}"
    return Row(f"image {name}", image.tag, newest, how, not digest)


def report(found: Iterator[Row]) -> int:
    """Print the table and the exit status of it: 1 if anything is wrong."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for column in ("pin", "have", "newest", "verified how"):
        table.add_column(column, overflow="fold")
    wrong = []
    for row in found:
        if row.wrong:
            wrong.append(f"{row.pin}: {row.how}")
        mark = "WRONG: " if row.wrong else ""
        table.add_row(*map(rich.markup.escape, (row.pin, row.have, row.newest, f"{mark}{row.how}")))
    rich.console.Console(width=None if sys.stdout.isatty() else COLUMNS).print(table)
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)
