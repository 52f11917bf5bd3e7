"""Builds an image from the clone with whichever of docker, podman and buildah there is: `image.py TARGET [FLAGS…]`.

TARGET is one of `containers/Containerfile`; the flags go to the builder. `--with PROGRAM` chooses it, `--print` shows
the command instead of running it. The standard library only.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "containers" / "Containerfile"
BUILDERS = {"docker": ["docker", "build"], "podman": ["podman", "build"], "buildah": ["buildah", "bud"]}
SUFFIX = {"forgelm": "", "forgelm-cuda": "-cuda"}


def main() -> None:
    """Become the builder, or say in one line why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=SUFFIX)
    parser.add_argument("--with", dest="builder", choices=BUILDERS)
    parser.add_argument("--print", dest="shown", action="store_true")
    asked, flags = parser.parse_known_args()
    builder = asked.builder or next(filter(shutil.which, BUILDERS), None)
    if builder is None:
        sys.exit("neither docker nor podman nor buildah is here: sudo apt install buildah")
    words = command(builder, asked.target, flags)
    if asked.shown:
        print(shlex.join(words))
    else:
        os.execvpe(words[0], words, {**os.environ, "DOCKER_BUILDKIT": "1"})


def command(builder: str, target: str, flags: list[str]) -> list[str]:
    """The builder's command line; a clone at the same commit gives the same."""
    pins = json.loads((ROOT / "containers" / "pins.json").read_text())
    labels = {
        "VERSION": version(),
        "REVISION": revision(),
        "LLAMA_CPP_COMMIT": pins["llama_cpp"]["commit"],
    }
    if target == "forgelm-cuda":
        labels["CUDA_ARCHITECTURES"] = " ".join(pins["cuda"]["architectures"])
        labels["CUDA_DRIVER"] = pins["cuda"]["driver"]
    words = [*BUILDERS[builder], "--file", str(FILE), "--target", target]
    for name in (version(), "latest"):
        words += ["--tag", f"forgelm:{name}{SUFFIX[target]}"]
    if builder == "docker":
        labels["SOURCE_DATE_EPOCH"] = committed()
    else:
        # OCI's own format has no health check, and without --layers a stage becomes one layer.
        words += ["--format", "docker", "--layers", "--timestamp", committed()]
    for name, value in labels.items():
        words += ["--build-arg", f"{name}={value}"]
    return [*words, *flags, str(ROOT)]


def version() -> str:
    """ForgeLM's own."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "forgelm" / "__init__.py").read_text(), re.MULTILINE)
    assert found, "forgelm/__init__.py says no version"
    return found[1]


def revision() -> str:
    """This clone's commit, marked where files differ from it."""
    return git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*") or "unknown"


def committed() -> str:
    """When that commit was made, in seconds since 1970; 1 outside a clone."""
    return git("show", "--no-patch", "--format=%ct", "HEAD") or "1"


def git(*arguments: str) -> str:
    """What git answers, without its end of line; "" where there is no git or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
