"""One browser for all tests, and one server whose answers are scripted."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.live import Live, running
from tests.ui.browser import Browser, browser
from tests.ui.texts import RICH, script

PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser itself."""
    found = [shutil.which(program) for program in PROGRAMS]
    missing = [name for name, path in zip(PROGRAMS, found, strict=True) if path is None]
    if missing:
        # CI installs them: there their absence is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"{' and '.join(missing)} not found: apt install chromium chromium-driver"
        )
    program, driver = (str(path) for path in found)
    with browser(program, driver, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The browser, which leaves the page in the end: it would go on asking a server that isn't there."""
    yield chromium
    chromium.leave()


@pytest.fixture(scope="session")
def rich(starter_path: Path) -> Iterator[Live]:
    """A server whose answers have all of Markdown in them."""
    with running(starter_path, fake={"step": 0.0005, "script": script(starter_path, RICH)}) as server:
        yield server


def base_of(live: Live) -> str:
    """Its address."""
    return f"http://127.0.0.1:{live.port}"
