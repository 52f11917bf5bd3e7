"""The flake as a fresh clone has it, evaluated by Nix against the stand-in for nixpkgs (README.md), away from /nix."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READ = (
    *("flake.nix", "flake.lock", "containers", "forgelm", "profiles", "pyproject.toml", "requirements.lock"),
    *("LICENSE", "THIRD_PARTY_NOTICES"),
)
"""What the flake may read of the tree; the stub lies beside it."""
STUB = "tests/nix/nixpkgs-stub"
SYSTEM = "x86_64-linux"
SETTINGS = """
experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =
allow-import-from-derivation = false
"""


def export(to: Path) -> Path:
    """The files that Git has under `READ` and `STUB`, as they are now: a clone has no others."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *READ, STUB], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def changed(tree: Path, to: Path, file: str, old: str, new: str) -> Path:
    """A copy of the tree in which `new` stands for `old` in one file."""
    copy: Path = shutil.copytree(tree, to / "changed")
    text = (copy / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (copy / file).write_text(text.replace(old, new))
    return copy


def environment(work: Path) -> dict[str, str]:
    """Nix's variables for a store of its own below `work`: nothing else of this machine is read or written."""
    kept = {name: os.environ[name] for name in ("PATH", "FORGELM_SDIST_DIR") if name in os.environ}
    places = {name: str(work / name.lower()) for name in ("NIX_STORE_DIR", "NIX_STATE_DIR", "NIX_LOG_DIR", "HOME")}
    return {**kept, **places, "NIX_CONF_DIR": str(work), "XDG_CACHE_HOME": str(work), "NIX_CONFIG": SETTINGS}


class Flake:
    """One tree and the store it is evaluated with."""

    def __init__(self, tree: Path, work: Path) -> None:
        self.tree = tree
        self._environment = environment(work)

    def nix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A `nix` command on it; relative installables ("#x") are this flake's."""
        flake = f"path:{self.tree}"
        options = ["--override-input", "nixpkgs", f"{flake}/{STUB}", "--no-write-lock-file"]
        given = [f"{flake}{argument}" if argument.startswith("#") else argument for argument in arguments]
        command = ["nix", given[0], *options, *given[1:]]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def check(self) -> str:
        """`nix flake check` without building: what it says is wrong, "" if nothing is."""
        options = ["--override-input", "nixpkgs", f"path:{self.tree}/{STUB}", "--no-write-lock-file", "--no-build"]
        command = ["nix", "flake", "check", *options, f"path:{self.tree}"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    def value(self, attribute: str, apply: str = "", *options: str) -> Any:
        """An output as plain data, put through the Nix function `apply` first."""
        more = ["--apply", apply] if apply else []
        done = self.nix("eval", "--json", f"#{attribute}", *more, *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def package(self, name: str, apply: str = "") -> Any:
        """The same of a package."""
        return self.value(f"packages.{SYSTEM}.{name}", apply)

    def service(self, given: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """The NixOS module's definitions, as JSON on stdout, with `services.forgelm` set to this."""
        stub = self.tree / STUB
        settings = json.dumps(json.dumps({"services": {"forgelm": given}})).replace("${", "\\${")
        apply = f"""module:
            let lib = import {stub}/lib.nix; in
            (lib.evalModules {{
              inherit lib module;
              given = builtins.fromJSON {settings};
              pkgs.stdenv.hostPlatform.system = "{SYSTEM}";
            }}).definitions"""
        return self.nix("eval", "--impure", "--json", "#nixosModules.default", "--apply", apply)
