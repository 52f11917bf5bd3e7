"""What goes wrong while somebody talks to a model: it is said where it happened, and nothing that was there is lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live, message, running, until
from tests.ui.browser import Browser
from tests.ui.conftest import base_of
from tests.ui.proxy import below_a_path
from tests.ui.texts import LONG, script

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
PROBLEM = ".message.assistant .problem"


@pytest.fixture(scope="module")
def single(starter_path: Path) -> Iterator[Live]:
    """A server that answers one at a time, at length, and has one more wait."""
    fake = {"step": 0.005, "slots": 1, "script": script(starter_path, LONG)}
    with running(starter_path, fake=fake, limits={"queue": 1}) as server:
        yield server


@contextmanager
def asked(server: Live) -> Iterator[None]:
    """Another client is being answered."""
    with server.http.stream("POST", CHAT, json=message("Go", stream=True)) as answer:
        lines = answer.iter_lines()
        until(lambda: "Line" in next(lines), "it has begun")
        yield


def restarted(server: Live) -> None:
    """Wait until another engine answers."""
    until(lambda: server.http.get("/readyz").status_code == 200, "it is back")
    server.engines.add(server.supervisor.pid)


def told(page: Browser) -> list[dict[str, Any]]:
    """The messages of the last request."""
    found: list[dict[str, Any]] = page.bodies(CHAT)[-1]["messages"]
    return found


def test_a_refusal_is_shown_where_it_happened_and_stays_over_a_reload(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    page.js("document.getElementById('prompt').value = 'word '.repeat(9000)")
    page.find("#prompt").send_keys(Keys.ENTER)
    page.answer()
    assert "context length is 8192 tokens" in page.text(PROBLEM)
    assert "“New” begins an empty conversation" in page.text(PROBLEM)
    page.driver.refresh()
    page.sees(PROBLEM, "context length is 8192 tokens")
    page.say("A shorter one")
    assert "A heading" in page.answer(2).text
    assert told(page) == [{"role": "user", "content": "A shorter one"}]
    page.behaved(refused=True)


def test_an_engine_that_dies_is_told_and_the_next_one_answers(page: Browser, single: Live) -> None:
    page.open(base_of(single)).say("Go")
    page.sees(".markdown p", "Line 1")
    os.kill(single.supervisor.pid, signal.SIGKILL)
    page.answer()
    assert "engine was killed" in page.text(PROBLEM)
    assert "Line 1" in page.text(".markdown"), "what came before it stays"
    page.driver.refresh()
    page.sees(PROBLEM, "engine was killed")
    assert "Line 1" in page.text(".markdown")
    restarted(single)
    page.sees("#state-text", "Ready")
    page.click(".message.assistant button", "Regenerate")
    page.sees(".message.assistant[aria-busy='true'] .markdown > *")
    page.press(Keys.ESCAPE)
    single.idle()


def test_a_connection_that_ends_early_is_told(page: Browser, single: Live) -> None:
    """A proxy that gives up may close its side as if that had been all."""
    with below_a_path(base_of(single), cut=b"bold") as base:
        page.open(base).say("Go")
        page.answer()
        assert "closed before the answer was complete" in page.text(PROBLEM)
        assert "Line 0" in page.text(".markdown")
        page.leave()
    single.idle()


def test_a_page_that_is_left_has_stopped_its_answer(page: Browser, single: Live) -> None:
    page.open(base_of(single)).say("Go")
    page.sees(".markdown p", "Line 1")
    page.driver.refresh()
    page.answer()
    assert page.text(".figures").endswith("stopped")
    page.misses(PROBLEM)
    assert "Line 1" in page.text(".markdown")
    single.idle()


def test_no_network_is_told(page: Browser, single: Live) -> None:
    page.open(base_of(single)).sees("#state-text", "Ready")
    loss = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", loss)
    try:
        page.say("Go")
        page.answer()
        assert "can't be reached" in page.text(PROBLEM)
        page.sees("#state-text", "Not reachable, trying again…")
    finally:
        page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**loss, "offline": False})
    page.sees("#state-text", "Ready")


def test_a_full_queue_says_when_to_try_again(page: Browser, single: Live) -> None:
    page.open(base_of(single)).sees("#state-text", "Ready")
    with asked(single):
        # A second one waits, and the third is too many.
        page.say("I wait")
        page.sees("#waiting", "1")
        refused = single.chat("One too many")
        page.press(Keys.ESCAPE)
        page.answer()
        assert page.text(".figures") == "stopped"
        answer = (
            "fetch = async () => new Response(arguments[0], { status: 429, headers: { 'retry-after': arguments[1] } })"
        )
        page.js(f"window.{answer}", refused.text, refused.headers["retry-after"])
        page.say("Another")
        page.sees(PROBLEM, "The queue is full", f"Try again in {refused.headers['retry-after']} s.")
    single.idle()


def test_questions_without_an_answer_are_asked_together(page: Browser, single: Live) -> None:
    """Some templates refuse two messages of one role after each other, and would go on to with each question."""
    page.open(base_of(single)).sees("#state-text", "Ready")
    with asked(single):
        page.say("One")
        page.sees("#waiting", "1")
        page.press(Keys.ESCAPE)
        page.answer()
    single.idle()
    page.js("document.getElementById('prompt').value = 'T\\ud800wo'")
    page.find("#prompt").send_keys(Keys.ENTER)
    page.sees(".markdown p", "Line 1")
    page.press(Keys.ESCAPE)
    page.answer(2)
    # Half a character isn't sent: the server would refuse the conversation, now and later.
    assert told(page) == [{"role": "user", "content": "One\n\nT\ufffdwo"}]
    single.idle()


def test_a_model_that_is_still_loading(page: Browser, starter_path: Path) -> None:
    with running(starter_path, fake={"load": 2.0, "step": 0.005}, wait=False) as server:
        until(lambda: _lives(server), "it listens")
        page.open(base_of(server)).sees("#load-text", "Loading the model")
        page.say("Hello")
        page.sees(PROBLEM, "The model is loading", "Try again in 2 s.")
        page.sees("#state-text", "Ready")
        page.misses("#load")
        page.click(".message.assistant button", "Regenerate")
        page.sees(".message.assistant[aria-busy='true'] .markdown > *")
        page.press(Keys.ESCAPE)
        page.answer()
        page.leave()


def _lives(server: Live) -> bool:
    return server.http.get("/livez").status_code == 200
