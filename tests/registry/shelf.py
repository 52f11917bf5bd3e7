"""A registry's folders for one test, empty and nobody else's, and the hub on this machine that it fetches from."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from forgelm.fit.budget import Budget, Pool
from forgelm.ipc.registry import DownloadRequest, Installed
from forgelm.registry.hub import Hub
from forgelm.registry.library import Library
from forgelm.registry.partial import Origin, write_origin
from forgelm.registry.progress import Progress
from forgelm.registry.retries import Limits
from tests.registry.files import write_tiny
from tests.registry.hub import LocalHub

HASH = "ab" * 32
BUDGET = Budget(Pool("RAM", 16 << 30, 8 << 30))
QUICK = Limits(connect=5.0, stall=5.0, attempts=4, first_wait=0.01, longest_wait=0.05)
OFFLINE = ("FORGELM_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
ELSEWHERE = (*OFFLINE, "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE")


class Shelf:
    """The folders of one registry."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models = root / "models"
        self.state = root / "state"
        self.profiles = root / "config" / "forgelm" / "profiles"
        self.variables = {
            "FORGELM_MODELS": str(self.models),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "xdg-state"),
            "HF_HOME": str(root / "hf"),
        }
        self.models.mkdir(parents=True)
        self.profiles.mkdir(parents=True)

    def settle(self, monkeypatch: pytest.MonkeyPatch) -> "Shelf":
        """Have this process use these folders."""
        for name in ELSEWHERE:
            monkeypatch.delenv(name, raising=False)
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        return self

    def library(self, hub: LocalHub | None = None, *, models: Path | None = None, state: Path | None = None) -> Library:
        """A library of these folders; without a `hub` it is offline."""
        return Library(
            models or self.models,
            state or self.state,
            hub=lambda: Hub(endpoint=hub.endpoint if hub else None, offline=hub is None, limits=QUICK),
            repacked=frozenset(),
            budget=lambda: BUDGET,
        )

    def profile(self, name: str, **model: Any) -> None:
        """Write a profile of the user's."""
        fields = {"id": f"{name}-id", **model}
        lines = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in fields.items())
        (self.profiles / f"{name}.toml").write_text(f'name = "{name}"\n[model]\n{lines}\n')

    def put(self, name: str, source: Path) -> Path:
        """Put a file into the models' folder."""
        target = self.models / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target) if source.stat().st_dev == target.parent.stat().st_dev else target.write_bytes(
            source.read_bytes()
        )
        return target


def fetched(shelf: Shelf, repo: str, *names: str, sha256: str = HASH) -> list[Path]:
    """Tiny models that look as if they had been fetched."""
    paths = []
    for name in names:
        path = shelf.models / repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        note(write_tiny(path), repo, name, sha256)
        paths.append(path)
    return paths


def note(path: Path, repo: str, name: str, sha256: str = HASH) -> None:
    write_origin(path, Origin(repo, name, "c0ffee", path.stat().st_size, sha256, "mit"))


def ids(found: list[Installed]) -> list[str]:
    return [model.id for model in found]


def pull(library: Library, **request: Any) -> Installed:
    """Plan and fetch."""
    planned = library.plan(DownloadRequest(**request))
    return library.pull(
        planned, accept_license=request.get("accept_license", False), progress=silent, cancel=threading.Event()
    )


def silent(_: Progress) -> None:
    """Nobody watches."""
