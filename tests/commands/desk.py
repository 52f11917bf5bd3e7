"""`forgelm` with folders of its own and a hub on this machine, as its users have it."""

import shutil
import subprocess
from pathlib import Path

from tests.program import FORGELM, Terminal, environment, forgelm
from tests.registry.hub import LocalHub
from tests.registry.hub.catalog import Content, Model
from tests.registry.shelf import Shelf


class Desk:
    """Runs the program in these folders, with this hub."""

    def __init__(self, shelf: Shelf, hub: LocalHub) -> None:
        self.shelf = shelf
        self.hub = hub
        self.variables = {
            **shelf.variables,
            "HF_ENDPOINT": hub.endpoint,
            "XDG_CACHE_HOME": str(shelf.root / "cache"),
            "XDG_RUNTIME_DIR": str(shelf.root / "run"),
        }

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return forgelm(*arguments, env={**self.variables, **changes})

    def good(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, which has to be a good one."""
        result = self.run(*arguments, **changes)
        assert result.returncode == 0, result.stderr
        return result

    def refused(self, *arguments: str, **changes: str) -> str:
        """Run what has to fail; its last words, one line."""
        result = self.run(*arguments, **changes)
        assert (result.returncode, result.stdout) == (1, ""), (result.stdout, result.stderr)
        return last_words(result.stderr)

    def terminal(self, *arguments: str, **changes: str) -> Terminal:
        """Run it on a terminal."""
        return Terminal([*FORGELM, *arguments], env={**self.variables, **changes})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it without waiting for its end."""
        return subprocess.Popen(
            [*FORGELM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**self.variables),
        )

    def place(self, repo: str, file: str) -> Path:
        """Where a file of the hub's belongs."""
        return self.shelf.models / repo / file

    def cache(self, model: Model, name: str) -> Path:
        """Put a file of the hub's into the Hugging Face cache; its path there."""
        root = self.shelf.root / "hf" / "hub" / f"models--{model.id.replace('/', '--')}"
        content = model.files[name]
        blob = root / "blobs" / content.sha256
        blob.parent.mkdir(parents=True)
        shutil.copyfile(content.path, blob)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(model.commit)
        path = root / "snapshots" / model.commit / name
        path.parent.mkdir(parents=True)
        path.symlink_to(blob)
        return path

    def sent(self, content: Content) -> int:
        """Bytes of a file that the hub has sent."""
        return self.hub.log.sent(content.sha256)


def last_words(errors: str) -> str:
    """The failure that a program ended with: one line of ours, and nothing of Python's."""
    assert "Traceback" not in errors, errors
    last = errors.splitlines()[-1]
    assert last.startswith("forgelm: "), errors
    return last
