"""Talking to a model on the page."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live, message, running, until
from tests.ui.browser import Browser
from tests.ui.conftest import base_of
from tests.ui.texts import LONG, script

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def slow(starter_path: Path) -> Iterator[Live]:
    """A server whose answers are long, and take a while."""
    with running(starter_path, fake={"step": 0.002, "script": script(starter_path, LONG)}) as server:
        yield server


def test_an_answer_and_its_figures(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).say("Show me everything.")
    answer = page.answer()
    for tag in ("h4", "strong", "em", "del", "ol > li", "ul > li", "td", "blockquote", "pre > code", "h4 > code", "a"):
        assert page.all(f".markdown {tag}"), tag
    assert "return 42  # <b>not bold</b>" in answer.text
    usage = rich.chat("Show me everything.").json()["usage"]
    figures = page.text(".figures")
    assert f"prompt {usage['prompt_tokens']}" in figures
    assert f"{usage['completion_tokens']} tokens" in figures
    assert re.search(r"[\d.]+ tok/s · TTFT \d+ ms", figures)
    assert page.focused() == "prompt"
    page.behaved()


def test_what_was_taken_from_memory_is_said(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).say("A question that nobody asked before, and that is asked twice.")
    page.answer()
    page.click(".message.assistant button", "Regenerate")
    page.sees(".figures", "cached")
    assert len(page.all(".message")) == 2


def test_the_answer_is_seen_while_it_is_written_and_stopping_stops_the_engine(page: Browser, slow: Live) -> None:
    page.open(base_of(slow)).say("Tell me a long story.")
    page.sees(".message.assistant[aria-busy='true'] .markdown p", "Line 1")
    assert re.search(r"tok/s · TTFT .* · \d+ tokens", page.text(".figures"))
    page.sees("#running", "1")
    page.click("#send", "Stop")
    assert "Line 399" not in page.answer().text
    assert page.text(".figures").endswith("stopped")
    slow.idle()
    page.sees("#running", "0")
    assert page.text("#send") == "Send"
    # What it said so far is part of the conversation.
    page.say("Go on.")
    page.sees(".message.assistant[aria-busy='true'] .markdown p", "Line 0")
    page.press(Keys.ESCAPE)
    page.answer(2)
    roles = [each["role"] for each in page.bodies(CHAT)[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    page.behaved()


def test_what_was_drawn_stays(page: Browser, slow: Live) -> None:
    """An answer of some thousand tokens must not be drawn anew with each of them."""
    page.open(base_of(slow)).say("Tell me a long story.")
    page.sees(".markdown p:nth-child(4)")
    page.js("document.querySelector('.markdown p').mark = 'the same'")
    page.sees(".markdown p:nth-child(20)")
    assert page.js("return document.querySelector('.markdown p').mark") == "the same"
    page.click("#send", "Stop")
    slow.idle()


def test_whoever_reads_further_up_stays_there(page: Browser, slow: Live) -> None:
    page.open(base_of(slow)).say("Tell me a long story.")
    page.sees(".markdown p:nth-child(20)")
    place = "return document.getElementById('log').scrollTop"
    page.until(lambda: page.js(place) > 0, "the end is followed")
    page.js("document.getElementById('log').scrollTop = 10")
    page.sees("#latest")
    count = len(page.all(".markdown p"))
    page.until(lambda: len(page.all(".markdown p")) > count + 5, "it goes on")
    assert page.js(place) == 10
    page.click("#latest")
    page.misses("#latest")
    page.press(Keys.ESCAPE)
    slow.idle()


def test_leaving_the_page_stops_the_engine(page: Browser, slow: Live) -> None:
    page.open(base_of(slow)).say("Tell me a long story.")
    page.sees(".markdown p", "Line 1")
    page.leave()
    slow.idle()
    page.driver.back()
    assert "Line 1" in page.answer().text, "what it had said is still there"


def test_an_answer_in_one_piece(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).click("#settings > summary")
    page.click("#set-stream")
    page.say("Show me everything.")
    assert "A heading" in page.answer().text
    assert "stream" not in page.bodies(CHAT)[-1]
    assert re.search(r"[\d.]+ tok/s · TTFT \d+ ms · prompt \d+", page.text(".figures"))
    page.behaved()


def test_an_answer_in_one_piece_can_be_stopped(page: Browser, slow: Live) -> None:
    page.open(base_of(slow)).click("#settings > summary")
    page.click("#set-stream")
    page.say("Tell me a long story.")
    page.sees("#running", "1")
    page.press(Keys.ESCAPE)
    page.answer()
    slow.idle()
    assert page.text(".figures") == "stopped"


def test_settings_are_sent_and_kept(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).click("#settings > summary")
    for name, value in {"system": "Be brief.", "temperature": "0.4", "top_p": "0.9", "max_tokens": "5"}.items():
        page.find(f"#set-{name}").send_keys(value)
    page.say("Hello")
    page.answer()
    body = page.bodies(CHAT)[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.4, 0.9, 5)
    assert "ended at the most tokens allowed" in page.text(".figures")
    assert "system prompt · temperature 0.4 · top-p 0.9 · 5 tokens at most" in page.text("#settings-summary")
    page.driver.refresh()
    assert page.sees("#settings-summary", "temperature 0.4")


def test_a_setting_that_cannot_be_is_pointed_at(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).click("#settings > summary")
    page.find("#set-temperature").send_keys("3")
    page.click("#settings > summary")
    page.say("Hello")
    assert page.focused() == "set-temperature"
    assert page.all(".message") == []
    assert page.find("#prompt").get_property("value") == "Hello"


def test_a_setting_that_cannot_be_costs_no_answer(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).say("Hello")
    page.answer()
    page.click("#settings > summary")
    page.find("#set-temperature").send_keys("3")
    page.click(".message.assistant button", "Regenerate")
    page.click(".message.user button", "Edit")
    page.press(" there", Keys.ENTER)
    assert page.focused() == "set-temperature"
    assert "A heading" in page.answer().text


def test_a_model_that_does_not_think_is_not_asked_to(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).click("#settings > summary")
    page.until(lambda: not page.find("#set-thinking").is_enabled(), "the choice is closed")
    assert "not possible" in page.text("#set-thinking")


def test_thinking_is_folded(page: Browser, qwen35_vocab_path: Path) -> None:
    thoughts = "Let me think about it. " * 12
    said = script(qwen35_vocab_path, f"{thoughts}\n</think>\n\nIt is **42**.")
    with running(qwen35_vocab_path, fake={"step": 0.005, "script": said}) as server:
        page.open(base_of(server)).click("#settings > summary")
        page.choose("#set-thinking", "on")
        page.say("What is it?")
        page.sees(".thinking summary", "Thinking…")
        page.until(lambda: re.search(r"Thinking… [1-9]\d tokens", page.text(".thinking summary")), "tokens are counted")
        assert "Let me think" not in page.text(".message.assistant")
        assert page.answer().find_element("css selector", ".markdown strong").text == "42"
        usage = server.chat("What is it?", chat_template_kwargs={"enable_thinking": True}).json()["usage"]
        counted = usage["completion_tokens_details"]["reasoning_tokens"]
        page.click(".thinking summary", f"Thought for {counted} tokens")
        assert page.text(".thinking > div").strip() == thoughts.strip()
        page.say("And what else?")
        page.answer(2)
        assert "Let me think" not in str(page.bodies(CHAT)[-1])
        page.behaved()


def test_edit_regenerate_copy_and_begin_anew(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    rights = {"origin": base_of(rich), "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", rights)
    for number, text in enumerate(("First", "Second"), 1):
        page.say(text)
        page.answer(number)
    page.all(".message.user button")[0].click()
    page.press(" of all", Keys.SHIFT, Keys.ENTER, Keys.NULL, "and more", Keys.ENTER)
    page.until(lambda: len(page.all(".message")) == 2, "what followed is gone")
    page.answer()
    assert page.bodies(CHAT)[-1]["messages"] == [{"role": "user", "content": "First of all\nand more"}]
    page.click(".message.user button", "Copy")
    page.sees(".message.user button", "Copied")
    read = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
    assert page.driver.execute_async_script(read) == "First of all\nand more"
    page.click(".code button")
    page.sees(".code button", "Copied")
    assert page.driver.execute_async_script(read).startswith("def answer()")
    page.click(".message.assistant button", "Raw")
    assert page.text(".raw").startswith("## A heading with `code`")
    assert not page.find(".markdown").is_displayed()
    page.driver.refresh()
    assert "A heading" in page.answer().text
    page.click("#new-chat")
    assert page.all(".message") == []
    page.driver.refresh()
    page.sees("#welcome")
    page.behaved()


def test_editing_can_be_given_up(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).say("First")
    page.answer()
    page.click(".message.user button", "Edit")
    page.press(" changed", Keys.ESCAPE)
    assert page.text(".message.user .text") == "First"
    assert len(page.all(".message")) == 2
    assert page.focused() == "Edit"


def test_screen_readers_hear_blocks_and_not_tokens(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).say("Show me everything.")
    page.answer()
    heard = [each.get_attribute("textContent") for each in page.all("#heard > p")]
    assert heard[0] == "A heading with code"
    assert heard[-1] == "The end."
    assert len(heard) == 7
    assert page.find("#heard").get_attribute("aria-live") == "polite"


def test_two_pages_and_another_client(page: Browser, slow: Live) -> None:
    """What others ask is seen: how many run, how far they are, and nothing of what they say."""
    page.open(base_of(slow))
    with slow.http.stream("POST", CHAT, json=message("A secret", stream=True)) as answer:
        lines = answer.iter_lines()
        until(lambda: "Line" in next(lines), "it has begun")
        page.sees("#requests li", "decode")
        assert "secret" not in page.text("body")
        assert page.text("#glance") == "" or "1 running" in page.text("#glance")
    slow.idle()
    page.misses("#requests li")


def test_nobody_is_asked_while_nobody_looks(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    page.sees("#state-text", "Ready")
    turn = """Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));"""

    def asked() -> int:
        return len([each for each in page.requests() if each["url"].endswith("/status")])

    page.js(turn, True)
    before = asked()
    time.sleep(1.5)
    # One may have been on its way.
    assert asked() <= before + 1
    page.js(turn, False)
    page.until(lambda: asked() >= before + 2, "it asks again")
