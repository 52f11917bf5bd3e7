"""`make image-test`: builds the real image twice on Debian, runs it as users would, and prints what it saw.

It takes minutes, a quarter of an hour where llama.cpp isn't compiled yet, and needs buildah, podman and debootstrap (or
`--base`, an image). Everything lies in `build/image`. It ends at the first thing that isn't as it should be.
"""

import argparse
import json
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from forgelm import paths
from tests import models
from tests.containers.image_runs import (
    drains,
    long_streams_end,
    one_shot_commands,
    says_what_to_mount,
    serves,
    volume_is_ours,
)
from tests.containers.podman import Podman

ROOT = Path(__file__).parents[2]
MIRROR = "http://deb.debian.org/debian"
BASE = "localhost/debian:base"
IMAGE = "localhost/forgelm:checked"
CHECKS: tuple[Callable[[Podman, str, Path], str], ...] = (
    one_shot_commands, serves, drains, long_streams_end, says_what_to_mount, volume_is_ours,
)  # fmt: skip


def main() -> None:
    """Build, compare, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "image")
    parser.add_argument("--base", default="", help="an image or a directory with Debian, instead of debootstrap's")
    parser.add_argument("--no-build", action="store_true", help="run what was built before")
    asked, flags = parser.parse_known_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    podman = Podman(asked.work.absolute())
    versions = [podman("--version"), podman("--version", program="buildah")]
    say(", ".join([time.strftime("%Y-%m-%d"), platform.machine(), *versions]))
    if not asked.no_build:
        base = debian(podman, asked.work, asked.base)
        first, second = (build(podman, asked.work, base, number, flags) for number in (1, 2))
        assert first == second, f"two builds, two images: {first}, {second}"
        say(f"two builds, one image: {first[:12]}")
    say(describe(podman))
    folder = asked.work / "models"
    give_starter(folder)
    for check in CHECKS:
        say(f"{check.__name__.replace('_', ' ')}: {check(podman, IMAGE, folder)}")


def say(text: str) -> None:
    """A line of the report, now."""
    print(text, flush=True)


def debian(podman: Podman, work: Path, given: str) -> str:
    """The name of an image with a bare Debian."""
    if given and not Path(given).is_dir():
        return given
    if not podman.has(BASE):
        root = Path(given) if given else work / "base"
        if not given:
            release = json.loads((ROOT / "containers" / "pins.json").read_text())["debian"]["release"]
            began = time.monotonic()
            shutil.rmtree(root, ignore_errors=True)
            podman("--variant=minbase", release, str(root), MIRROR, program="debootstrap", log=work / "base.log")
            say(f"debootstrap: {time.monotonic() - began:.0f} s")
        archive = work / "base.tar"
        podman("--create", "--file", str(archive), "--directory", str(root), ".", program="tar")
        podman("import", "--quiet", str(archive), BASE)
        archive.unlink()
    return BASE


def build(podman: Podman, work: Path, base: str, number: int, flags: list[str]) -> str:
    """Build it from nothing but the wheels that are compiled; the image's id."""
    wheels = paths.cache_dir() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    command = ["bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--no-cache", "--layers"]
    # OCI's format: Docker's, in which buildah keeps the health check, has the name of the build's container in it.
    command += ["--format", "oci", "--timestamp", "1", "--build-arg", f"BASE={base}"]
    command += ["--volume", f"{wheels}:/root/.cache/forgelm/wheels", *flags]
    command += ["--file", str(ROOT / "containers" / "Containerfile"), "--target", "forgelm", "--tag", IMAGE, str(ROOT)]
    began = time.monotonic()
    podman(*command, program="buildah", log=work / f"build-{number}.log")
    say(f"build {number}: {time.monotonic() - began:.0f} s")
    return podman("image", "inspect", "--format", "{{.Id}}", IMAGE)


def describe(podman: Podman) -> str:
    """Its size, its layers and what it holds."""
    size = int(podman("image", "inspect", "--format", "{{.Size}}", IMAGE))
    history = json.loads(podman("history", "--format", "json", IMAGE))
    layers = [f"{each['size'] / 1e6:.0f}" for each in history if each["size"] > 100_000]
    return f"{size / 1e6:.0f} MB, layers from the last to the base: {', '.join(layers)} MB"


def give_starter(folder: Path) -> None:
    """A folder as a user mounts it: not uid 65532's, but readable."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    starter = models.starter()
    if not (folder / starter.name).exists():
        shutil.copy(starter, folder)
    (folder / starter.name).chmod(0o644)


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPError as error:
        raise SystemExit(f"no answer: {error}") from error
