"""One file of a local hub, fetched by this process or by one that can be killed."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from forgelm.errors import ForgeError
from forgelm.registry.hub import Hub
from forgelm.registry.partial import Partial
from forgelm.registry.progress import Progress
from forgelm.registry.retries import Limits
from forgelm.registry.transfer import fetch
from tests.registry.hub import Content, LocalHub

QUICK = Limits(connect=5.0, stall=5.0, attempts=4, first_wait=0.01, longest_wait=0.05)
REPO, FILE = "own/rep", "model.gguf"


@dataclass
class Fetching:
    """`FILE` of `REPO`, into an empty models' folder."""

    local: LocalHub
    models: Path
    content: Content
    limits: Limits = QUICK
    told: list[Progress] = field(default_factory=list)
    on_progress: Callable[[], object] = bool
    """Called when something was told."""

    @property
    def target(self) -> Path:
        return self.models / REPO / FILE

    @property
    def partial(self) -> Partial:
        return Partial(self.target)

    @property
    def sent(self) -> int:
        """Bytes of the file that the hub has sent."""
        return self.local.log.sent(self.content.sha256)

    @property
    def states(self) -> list[str]:
        """What was told, repetitions left out."""
        found: list[str] = []
        for each in self.told:
            if not found or found[-1] != each.state:
                found.append(each.state)
        return found

    def run(self, cancel: threading.Event | None = None, connections: int = 4, **fields: Any) -> Path:
        """Fetch it here; `fields` are further ones of the hub."""
        hub = Hub(endpoint=self.local.endpoint, limits=self.limits, **fields)
        repo = hub.repo(REPO)
        return fetch(
            hub,
            repo,
            repo.file(FILE),
            self.models,
            cancel=cancel or threading.Event(),
            progress=self._hear,
            connections=connections,
        )

    def _hear(self, progress: Progress) -> None:
        self.told.append(progress)
        self.on_progress()

    def is_right(self) -> bool:
        """Whether the model is there, with the right bytes and nothing else beside it."""
        beside = {path.name for path in self.target.parent.iterdir()}
        return self.target.read_bytes() == self.content.path.read_bytes() and beside == {
            FILE,
            self.partial.origin.name,
            self.partial.lock.name,
        }

    def visible(self) -> list[Path]:
        """What others would take for a model."""
        return [path for path in self.models.rglob("*.gguf") if not path.name.startswith(".")]

    def failure(self) -> ForgeError:
        """The error in which it ends, with no model there."""
        with pytest.raises(ForgeError) as caught:
            self.run()
        assert self.visible() == []
        assert "\n" not in str(caught.value)
        return caught.value

    @contextmanager
    def child(self) -> Iterator[ForkServerProcess]:
        """Fetch it in a process of its own, which is killed in the end if it still runs."""
        process = _context.Process(target=_run, args=(self.local.endpoint, str(self.models)))
        process.start()
        try:
            yield process
        finally:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            process.join()


def place(local: LocalHub, models: Path, content: bytes | Path) -> Fetching:
    """Put the file on a hub."""
    models.mkdir(exist_ok=True)
    model = local.add(REPO, {FILE: content})
    return Fetching(local, models, model.files[FILE])


def _run(endpoint: str, models: str) -> None:
    hub = Hub(endpoint=endpoint, limits=QUICK)
    repo = hub.repo(REPO)
    fetch(hub, repo, repo.file(FILE), Path(models), cancel=threading.Event(), progress=lambda _: None)


# Children come from a process that has imported everything: a child of its own takes a second, of which one kills many.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])
