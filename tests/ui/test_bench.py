"""The quick benchmark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live, running
from tests.ui.browser import Browser
from tests.ui.conftest import base_of

pytestmark = pytest.mark.server

TEXT = "/v1/completions"
SLOTS = 5


@pytest.fixture(scope="module")
def five(starter_path: Path) -> Iterator[Live]:
    """A server with five slots."""
    with running(starter_path, fake={"step": 0.002, "slots": SLOTS}) as server:
        yield server


@pytest.fixture(scope="module")
def eight(starter_path: Path) -> Iterator[Live]:
    """A server with eight slots."""
    with running(starter_path, fake={"step": 0.002, "slots": 8}) as server:
        yield server


def begin(page: Browser, server: Live, tokens: int) -> None:
    """Run it with answers of so many tokens."""
    page.open(base_of(server)).sees("#facts", "requests")
    page.click("#to-bench")
    page.find("#bench-tokens").clear()
    page.find("#bench-tokens").send_keys(str(tokens))
    page.click("#bench-start")


def test_it_runs_as_many_clients_as_fit(page: Browser, eight: Live) -> None:
    before = eight.metric("forgelm_generated_tokens_total")
    begin(page, eight, 12)
    page.sees("#bench-log", "Done.")
    lines = [each.text for each in page.all("#bench-log li")]
    levels = [1, 2, 4, 8]
    for clients, line in zip(levels, lines[2:6], strict=True):
        found = re.match(r"(\d+) clients?: (\d+) answers, (\d+) tokens in [\d.]+ m?s · [\d.,]+ tok/s in all", line)
        assert found, line
        assert [int(each) for each in found.groups()] == [clients, 2 * clients, 24 * clients]
    done = eight.metric("forgelm_generated_tokens_total") - before
    # The warm-up answers twice with eight tokens.
    assert done == 12 * 2 * sum(levels) + 16
    assert len(page.all("#bench-plot circle.rate")) == len(page.all("#bench-plot circle.ttft")) == 4
    assert "8 clients" in str(page.find("#bench-plot svg").get_attribute("aria-label"))
    asked = [prompt for body in page.bodies(TEXT) for prompt in body["prompt"]]
    assert len(asked) == len(set(asked)) == 2 + 2 * sum(levels)
    assert page.text("#bench-start") == "Run the benchmark"
    page.behaved()


def test_it_never_asks_for_more_than_there_are_slots(page: Browser, five: Live) -> None:
    begin(page, five, 8)
    page.sees("#bench-log", "Done.")
    assert "8 clients" not in page.text("#bench-log")
    assert "4 clients" in page.text("#bench-log")


@pytest.mark.parametrize("key", [Keys.ENTER, Keys.ESCAPE])
def test_it_can_be_stopped(page: Browser, eight: Live, key: str) -> None:
    begin(page, eight, 1000)
    page.sees("#running", "1")
    assert page.text("#bench-start") == "Stop"
    page.find("#bench-start").send_keys(key)
    page.sees("#bench-log", "Stopped.")
    eight.idle()
    assert page.text("#bench-start") == "Run the benchmark"


def test_what_goes_wrong_is_said(page: Browser, starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.005, "crash_at": 30}) as server:
        begin(page, server, 100)
        page.sees("#bench-log", "Failed: ")
        page.sees("#state-text", "Ready")
        server.engines.add(server.supervisor.pid)
