"""A server with keys: the page asks for one, says when it is wrong, and keeps it to this tab."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live, running
from tests.ui.browser import Browser
from tests.ui.conftest import base_of

pytestmark = pytest.mark.server

KEYS = ("sk-alpha", "clé-secrète")


@pytest.fixture(scope="module")
def guarded(starter_path: Path) -> Iterator[Live]:
    """A server with two keys."""
    with running(starter_path, keys=KEYS) as server:
        yield server


def test_a_wrong_key_then_a_right_one(page: Browser, guarded: Live) -> None:
    page.open(base_of(guarded))
    page.sees("#key label", "This server wants an API key.")
    page.until(lambda: page.focused() == "key-field", "the field has the focus")
    page.misses("#key-problem")
    page.sees("#state-text", "API key needed")
    page.press("sk-wrong", Keys.ENTER)
    page.sees("#key-problem", "That key isn't right.")
    assert page.focused() == "key-field"
    assert page.find("#key-field").get_attribute("aria-invalid") == "true"
    page.press("sk-alpha", Keys.ENTER)
    page.misses("#key")
    page.sees("#state-text", "Ready")
    page.until(lambda: page.find("#model").is_enabled(), "the models are there")
    assert page.focused() == "prompt"
    page.press("Hello", Keys.ENTER)
    page.sees(".message.assistant .markdown > *")
    page.press(Keys.ESCAPE)
    page.answer()
    page.behaved(refused=True)


def test_a_key_stays_in_its_tab(page: Browser, guarded: Live) -> None:
    page.open(base_of(guarded)).sees("#key")
    page.press("clé-secrète", Keys.ENTER)
    page.misses("#key")
    page.driver.refresh()
    page.sees("#state-text", "Ready")
    page.misses("#key")
    assert page.js("return localStorage.length + document.cookie.length") == 0
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.driver.get(f"{page.base}/")
        page.sees("#key")
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)
    assert all("secr" not in each["url"] for each in page.requests())


def test_a_key_that_is_wrong_in_the_middle_of_things(page: Browser, guarded: Live) -> None:
    """The question isn't lost: with a right key it is asked again."""
    page.open(base_of(guarded)).sees("#key")
    page.press(Keys.ESCAPE)
    page.misses("#key")
    page.say("Hello")
    page.sees("#key")
    assert page.focused() == "key-field"
    assert "API key" in page.text(".message.assistant .problem")
    page.press("sk-alpha", Keys.ENTER)
    page.misses("#key")
    page.click(".message.assistant button", "Regenerate")
    page.sees(".message.assistant[aria-busy='true'] .markdown > *")
    page.press(Keys.ESCAPE)
    page.answer()
    page.click("#key-open")
    page.sees("#key-field")
    page.click("#key-cancel")
    page.misses("#key")


def test_an_empty_key_is_no_key(page: Browser, guarded: Live) -> None:
    page.open(base_of(guarded)).sees("#key")
    page.press(Keys.ENTER)
    page.sees("#key-problem", "Type the key first.")
    assert page.focused() == "key-field"


def test_without_keys_nobody_is_asked(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).sees("#state-text", "Ready")
    page.misses("#key")
    page.misses("#key-open")
