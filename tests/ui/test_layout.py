"""Where things are: on a phone, by keyboard alone, in both colour schemes, below a proxy's path."""

from itertools import product
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live
from tests.ui.browser import PHONE, WIDE, Browser
from tests.ui.conftest import base_of
from tests.ui.proxy import PREFIX, below_a_path

pytestmark = pytest.mark.server

VIEWS = ("chat", "bench", "models")
REACHABLE = """const all = "button, input, select, textarea, summary, a[href], [tabindex='0']";
    return [...document.querySelectorAll(all)]
    .filter((each) => each.checkVisibility() && !each.disabled).length"""
HERE = """const e = document.activeElement, style = getComputedStyle(e);
    if (e === document.body) return null;
    document.reached ??= new Set(); document.reached.add(e);
    return { count: document.reached.size, name: e.id || e.textContent.slice(0, 40),
        outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 }"""
OUTSIDE = """return [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility())
    .filter((each) => !each.closest(".offscreen, pre, .table, svg, option"))
    .map((each) => [each.localName + "#" + each.id + "." + each.className, each.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.right > innerWidth + 0.5 || box.left < -0.5)).map(([name]) => name)"""
CONTRAST = """const rgb = (text) => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d");
      canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (text) => rgb(text).slice(0, 3).map((each) => each / 255)
      .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
      .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if (rgb(colour)[3] === 255) return colour;
      }
      return "white";
    };
    return [...document.querySelectorAll("body *")]
      .filter((each) => each.checkVisibility() && !each.disabled && !each.closest("svg, .offscreen, option"))
      .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
      .map((each) => {
        const [one, other] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
        return [each.textContent.slice(0, 30), (one + 0.05) / (other + 0.05)];
      }).filter(([, ratio]) => ratio < 4.5)"""


def answered(page: Browser, live: Live, size: tuple[int, int]) -> None:
    """A page with a question, its answer, and the settings open."""
    page.open(base_of(live), size).say("Averylongwordwithoutanyplacetobreakit" * 4)
    page.answer()
    page.click("#settings > summary")


def test_nothing_is_beside_the_screen(page: Browser, rich: Live) -> None:
    answered(page, rich, PHONE)
    for width, view in product((PHONE[0], 768, WIDE[0]), VIEWS):
        page.resize(width, PHONE[1])
        page.click(f"#to-{view}")
        page.sees(f"#view-{view}")
        assert page.js("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
        assert page.js(OUTSIDE) == []
        page.js("const server = document.getElementById('server'); if (!server.open) server.open = true")
        assert page.js(OUTSIDE) == []


def test_a_phone_has_the_server_in_a_fold(page: Browser, rich: Live) -> None:
    page.open(base_of(rich), PHONE)
    page.misses("#facts")
    page.sees("#server summary", "0 running, 0 waiting")
    page.click("#server summary")
    page.sees("#facts", "starter")
    page.resize(*WIDE)
    page.sees("#facts", "starter")
    page.misses("#glance")


def test_text_can_be_read_in_both_schemes(page: Browser, rich: Live) -> None:
    """WCAG's 4.5 between text and what is behind it."""
    answered(page, rich, WIDE)
    # What is rarely seen as well.
    page.js("for (const each of document.querySelectorAll('.band, .band p, .problem, .note')) each.hidden = false")
    page.js("for (const each of document.querySelectorAll('.problem, .band span')) each.textContent ||= 'words'")
    for scheme, view in product(("light", "dark"), VIEWS):
        page.prefer(scheme)
        ground = page.js("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(250, 249, 247)") == (scheme == "light")
        page.js(f"document.getElementById('to-{view}').click()")
        page.sees(f"#view-{view}")
        assert page.js(CONTRAST) == [], (scheme, view)


def test_everything_is_reached_by_keyboard_and_shows_it(page: Browser, rich: Live) -> None:
    answered(page, rich, WIDE)
    page.sees("#state-text", "Ready")
    for view in VIEWS:
        page.click(f"#to-{view}")
        page.sees(f"#view-{view}")
        page.js("document.activeElement.blur(); document.reached = undefined")
        there = page.js(REACHABLE)
        seen: list[dict[str, Any]] = []
        for _ in range(there + 5):
            page.press(Keys.TAB)
            here = page.js(HERE)
            if here is not None:
                assert here["outlined"], here
                seen.append(here)
        assert max(each["count"] for each in seen) == there, view


def test_the_browsers_own_buttons_lead_from_view_to_view(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    for view in ("models", "bench", "bench", "chat"):
        page.click(f"#to-{view}")
    for view in ("bench", "models"):
        page.driver.back()
        page.sees(f"#view-{view}")
    page.driver.forward()
    page.sees("#view-bench")
    page.driver.refresh()
    page.sees("#view-bench")
    page.driver.back()
    page.driver.back()
    page.sees("#view-chat")
    page.js("location.hash = 'nothing'")
    page.sees("#view-chat")
    page.behaved()


def test_a_conversation_without_a_mouse(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    assert page.focused() == "prompt"
    page.press("One", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    assert page.sees(".message.user .text").text == "One\ntwo"
    page.answer()
    assert page.focused() == "prompt"
    page.press(Keys.ENTER)
    assert len(page.all(".message")) == 2, "an empty message isn't sent"


def test_everything_has_a_name(page: Browser, rich: Live) -> None:
    """Controls without a label are silent to a screen reader."""
    answered(page, rich, WIDE)
    for view in VIEWS:
        page.click(f"#to-{view}")
        page.sees(f"#view-{view}")
        assert page.nameless() == [], view


def test_less_motion_for_who_wants_less(page: Browser, rich: Live) -> None:
    page.open(base_of(rich))
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.say("Hello")
    page.answer()
    moving = """return [...document.querySelectorAll("*")].map((each) => getComputedStyle(each))
        .filter((style) => style.animationName !== "none" || style.transitionDuration !== "0s").length"""
    assert page.js(moving) == 0


def test_below_a_path_of_a_proxy(page: Browser, rich: Live) -> None:
    with below_a_path(base_of(rich)) as base:
        page.open(base).say("Show me everything.")
        assert "A heading" in page.answer().text
        page.sees("#state-text", "Ready")
        page.click("#to-bench")
        page.click("#bench-start")
        page.sees("#bench-log", "1 client:")
        page.press(Keys.ESCAPE)
        page.sees("#bench-log", "Stopped.")
        paths = {urlsplit(each["url"]).path for each in page.requests()}
        assert all(path.startswith(f"{PREFIX}/") for path in paths), paths
        page.behaved()
        page.leave()
