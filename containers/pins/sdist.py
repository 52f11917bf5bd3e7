"""llama-cpp-python's sdist: fetched by pip, and what is in it."""

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from containers.pins import NAME, PinsError

HEAD = ".git/modules/vendor/llama.cpp/HEAD"
CMAKE = "vendor/llama.cpp/CMakeLists.txt"
PKG_INFO = "PKG-INFO"
UNVERSIONED = "0.0.0"
"""llama.cpp's version in releases from before it had one."""


class Contents(NamedTuple):
    """What pins say about an sdist."""

    version: str
    name: str
    sha256: str
    size: int
    commit: str
    """llama.cpp's."""
    llama_cpp: str
    """Its version."""
    requires: tuple[str, ...]
    """Packages that it needs at run time, as it states them."""


def fetch(version: str, directory: Path) -> Path:
    """That version's sdist, by pip from whatever index is configured. Raises `PinsError` with pip's own reason."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME]
    command += ["--dest", str(directory), f"{NAME}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        raise PinsError(f"pip can't fetch {NAME} {version}: {' '.join(reasons[:1]).removeprefix('ERROR: ')[:200]}")
    path = directory / f"{NAME.replace('-', '_')}-{version}.tar.gz"
    if not path.exists():
        raise PinsError(f"pip has no {path.name}: {version} is another way to write a version it has")
    return path


def unpack(sdist: Path, directory: Path) -> Path:
    """Its files, laid out anew; the directory that has `vendor` in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return directory / sdist.name.removesuffix(".tar.gz")


def look_into(sdist: Path) -> Contents:
    """Hash, size, and llama.cpp's commit and version. Raises `PinsError` where one isn't told."""
    top = sdist.name.removesuffix(".tar.gz")
    wanted = {f"{top}/{name}": name for name in (HEAD, CMAKE, PKG_INFO)}
    texts: dict[str, str] = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.name in wanted and (file := archive.extractfile(member)):
                texts[wanted[member.name]] = file.read().decode()
    if missing := [name for name in wanted.values() if name not in texts]:
        raise PinsError(f"{sdist.name} has no {missing[0]}")
    commit = texts[HEAD].strip()
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise PinsError(f"{sdist.name}: {HEAD} is no commit but {commit[:60]!r}")
    with sdist.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    size, version = sdist.stat().st_size, top.rpartition("-")[2]
    requires = tuple(re.findall(r"^Requires-Dist: (?!.*extra ==)(.*)$", texts[PKG_INFO], re.MULTILINE))
    return Contents(version, sdist.name, sha256, size, commit, cmake_version(texts[CMAKE]), requires)


def cmake_version(text: str) -> str:
    """`LLAMA_VERSION_*` of llama.cpp's CMakeLists.txt."""
    numbers = dict(re.findall(r"set\(LLAMA_VERSION_(MAJOR|MINOR|PATCH) (\d+)\)", text))
    if len(numbers) < 3:
        return UNVERSIONED
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
