"""Renews `python.wheels` in pins.json from requirements.lock: the file and sha256 of each wheel that the flake takes.

`make nix-wheels` runs it with the clone's own Python, whose pip finds the files. It renews the names that are there:
which packages come as wheels is decided by hand (python.nix says how), and everything else about them by the lock.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "containers" / "pins.json"
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 31, 34))


def blocks(names: list[str]) -> str:
    """The lines of requirements.lock, hashes and all, for these packages. Raises `SystemExit` for one that it lacks."""
    lock = (ROOT / "requirements.lock").read_text()
    found = {match[1]: match[0] for match in re.finditer(r"^([a-z0-9-]+)==.*(?:\n    --hash.*)+\n", lock, re.MULTILINE)}
    missing = sorted(set(names) - set(found))
    if missing:
        sys.exit(f"requirements.lock has no {', '.join(missing)}")
    return "".join(found[name] for name in names)


def resolve(names: list[str], python: str) -> list[dict[str, Any]]:
    """What pip would install for this Python on x86-64: its report's entries, the hashes checked against the lock."""
    with tempfile.TemporaryDirectory() as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(blocks(names))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        command += ["--require-hashes", "--only-binary", ":all:", "--python-version", python, "--report", "-"]
        command += [f"--platform={name}" for name in PLATFORMS]
        command += ["--target", str(Path(directory) / "unused"), "-r", str(requirements)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    entries: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return entries


def pinned(entry: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """One entry of the report as pins.json holds it: the file's compatibility tag and its sha256."""
    file = Path(urlsplit(entry["download_info"]["url"]).path).stem
    name, _, *tag = file.split("-")
    sha256 = entry["download_info"]["archive_info"]["hashes"]["sha256"]
    return name.lower().replace("_", "-"), {"tag": "-".join(tag[-3:]), "sha256": sha256}


def main() -> None:
    """Rewrite the table in place."""
    pins = json.loads(PINS.read_text())
    python = pins["python"]
    found = dict(pinned(entry) for entry in resolve(sorted(python["wheels"]), python["version"]))
    python["wheels"] = {name: found[name] for name in sorted(found)}
    PINS.write_text(json.dumps(pins, indent=2) + "\n")


if __name__ == "__main__":
    main()
