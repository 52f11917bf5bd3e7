"""A browser at the page: what a user does there and sees, and what the browser itself has to say of it.

It finds things by role and words where a user would, and waits for what it expects.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PATIENCE = 20.0
WIDE, PHONE = (1280, 800), (360, 740)
NETWORK = "Failed to load resource"
"""How the console begins to tell of a request that was refused or not answered, which some tests are about."""


SEEN = """return [...document.querySelectorAll(arguments[0])]
    .filter((each) => each.checkVisibility())
    .filter((each) => arguments[1].every((text) => each.innerText.includes(text))).pop() ?? null"""
ANSWERS = "return document.querySelectorAll('.message.assistant[aria-busy=\"false\"]')"


NAMED = {
    *("button", "checkbox", "combobox", "image", "link", "log", "meter", "progressbar", "region", "searchbox"),
    *("spinbutton", "textbox", "DisclosureTriangle", "navigation", "article"),
}


class Browser:
    """One browser for all tests: `open` begins each of them with an empty page."""

    def __init__(self, program: str, driver: str, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--no-first-run",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(driver))
        self.driver.set_script_timeout(PATIENCE)
        self._log: Callable[[str], list[dict[str, Any]]] = self.driver.get_log
        self.base = ""
        self._spoken: list[str] = []
        self._asked: list[dict[str, Any]] = []

    def quit(self) -> None:
        """End it."""
        self.driver.quit()

    # --- where it is ---

    def open(self, base: str, size: tuple[int, int] = WIDE) -> "Browser":
        """The page of the server at `base`, as somebody sees it who was never there."""
        self.leave()
        self.resize(*size)
        self.prefer("light")
        # Another document of the same server, so that the page doesn't find what an earlier one has kept.
        self.driver.get(f"{base}/livez")
        self.js("sessionStorage.clear()")
        self.base = base
        self.console()
        self.requests()
        self._spoken, self._asked = [], []
        self.driver.get(f"{base}/")
        self.sees("#prompt")
        return self

    def leave(self) -> None:
        """Go where nothing is, so that no page asks a server that ends."""
        if self.driver.current_url != "about:blank":
            self.driver.get("about:blank")

    def resize(self, width: int, height: int) -> None:
        """Make the page so large, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Have the user prefer "dark" or "light"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # --- what there is ---

    def find(self, selector: str) -> WebElement:
        """The first element."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """All of them."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What an element shows; "" where it isn't there or isn't seen."""
        return str(self.js("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector))

    def js(self, script: str, *arguments: Any) -> Any:
        """What a script returns, run by the driver: the page's own policy doesn't concern it."""
        return self.driver.execute_script(script, *arguments)

    def focused(self) -> str:
        """The id of what has the focus, or what it says."""
        return str(self.js("const e = document.activeElement; return e.id || e.textContent"))

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait until `condition` gives something true, and return that."""
        end = time.monotonic() + seconds
        while True:
            try:
                found = condition()
            except StaleElementReferenceException:
                found = None
            if found:
                return found
            assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}; the page: {self.text('body')[-1500:]}"
            time.sleep(0.03)

    def sees(self, selector: str, *texts: str) -> WebElement:
        """Wait until an element is seen with all of `texts` in it; the last such one."""
        found: WebElement = self.until(lambda: self.js(SEEN, selector, texts), f"{selector} shows {texts}")
        return found

    def misses(self, selector: str) -> None:
        """Wait until no such element is seen."""
        self.until(lambda: self.js(SEEN, selector, []) is None, f"{selector} is gone")

    # --- what a user does ---

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def click(self, selector: str, *texts: str) -> None:
        """Click the last element that is seen and has `texts`."""
        self.sees(selector, *texts).click()

    def say(self, text: str) -> None:
        """Send a message."""
        self.find("#prompt").send_keys(text, Keys.ENTER)

    def answer(self, number: int = 1) -> WebElement:
        """The answer of that number, once it is complete."""

        found: list[WebElement] = self.until(
            lambda: (answers := self.js(ANSWERS)) and len(answers) >= number and answers,
            f"{number} answers are complete",
        )
        return found[number - 1]

    def choose(self, selector: str, value: str) -> None:
        """Choose an option."""
        option = self.until(lambda: self.all(f'{selector} option[value="{value}"]'), f"{value} can be chosen")[0]
        option.click()

    # --- what the browser tells ---

    def nameless(self) -> list[str]:
        """Roles of what a screen reader finds without a name, though a user does something with it."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        spoken = [
            (each["role"]["value"], each["name"]["value"]) for each in nodes if not each["ignored"] and "name" in each
        ]
        assert {role for role, _ in spoken} >= {"combobox", "button"}, spoken
        return [role for role, name in spoken if role in NAMED and not name.strip()]

    def console(self) -> list[str]:
        """Everything the console has had since `open`, violations of the policy included."""
        self._spoken += [entry["message"] for entry in self._log("browser")]
        return self._spoken

    def requests(self) -> list[dict[str, Any]]:
        """Requests since `open`: `url`, `method`, and `postData` where there was a body."""
        for entry in self._log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self._asked.append(event["params"]["request"])
        return self._asked

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """What was posted to a path since `open`."""
        return [json.loads(each["postData"]) for each in self.requests() if urlsplit(each["url"]).path == path]

    def behaved(self, *, refused: bool = False) -> None:
        """The console has nothing to say, but of requests where some were to be `refused`; nobody else was asked."""
        said = [line for line in self.console() if not (refused and NETWORK in line)]
        assert not said, said
        ours = urlsplit(self.base).netloc
        strangers = [each["url"] for each in self.requests() if urlsplit(each["url"]).netloc not in ("", ours)]
        assert not strangers, strangers

    def shot(self, path: Path) -> None:
        """A picture of what is seen."""
        self.driver.save_screenshot(str(path))


@contextmanager
def browser(program: str, driver: str, profile: Path) -> Iterator[Browser]:
    """A browser, until the context ends."""
    found = Browser(program, driver, profile)
    try:
        yield found
    finally:
        found.quit()
