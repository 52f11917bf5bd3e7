"""Models on the page: found and fetched from a hub on this machine, gone over to, and what fails on the way."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.api.live import Live
from tests.processes.serving import Served, serve, until
from tests.registry.hub.local import LocalHub
from tests.ui.browser import PHONE, Browser
from tests.ui.conftest import base_of

pytestmark = [pytest.mark.server, pytest.mark.model]

NAMES = ("first", "second", "strict", "slow", "gone", "third")
"""Models on the hub, one for each test: a download stays in the list."""
RATE = 16e6
"""Bytes per second, where somebody is to see a download going on."""


def repo(name: str) -> str:
    """Its repository."""
    return f"local/{name}-GGUF"


def file(name: str) -> str:
    """The one model in it."""
    return f"{name}-Q8_0.gguf"


class Shop:
    """A hub, and `forgelm serve` with a registry that knows it and a fake engine. The first model is here already."""

    def __init__(self, hub: LocalHub, server: Served) -> None:
        self.hub = hub
        self.server = server

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """JSON from the server."""
        answer = self.server.http.request(
            method, f"{self.server.base}{path}", headers={"accept": "application/json"}, **options
        )
        return answer.json()

    def listed(self) -> list[str]:
        """Ids of the models that are here."""
        return [each["id"] for each in self.ask("GET", "/registry/models").get("models", [])]

    def fetched(self, name: str) -> dict[str, Any]:
        """A download that another client has made."""
        job = self.ask("POST", "/registry/download", json={"repo": repo(name)})["id"]

        def done() -> dict[str, Any] | None:
            state: dict[str, Any] = self.ask("GET", f"/registry/downloads/{job}")
            return state if state["state"] == "done" else None

        found: dict[str, Any] = until(done, "it is here")
        until(lambda: found["model"] in [each["id"] for each in self.ask("GET", "/v1/models")["data"]], "it is listed")
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, qwen35_path: Path) -> Iterator[Shop]:
    """One for all tests."""
    folder = tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        # Sockets have short paths.
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="f"))
        (folder / "hub").mkdir()
        hub = stack.enter_context(LocalHub(folder / "hub"))
        for name in NAMES:
            licence = "llama3" if name == "strict" else "apache-2.0"
            hub.add(repo(name), {file(name): qwen35_path}, license=licence)
        places: dict[str, Any] = {
            "FORGELM_MODELS": str(folder / "models"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_RUNTIME_DIR": runtime,
            "HF_HOME": str(folder / "hf"),
            "HF_ENDPOINT": hub.endpoint,
        }
        here = folder / "models" / repo("first") / file("first")
        here.parent.mkdir(parents=True)
        here.write_bytes(qwen35_path.read_bytes())
        fake = {"step": 0.005, "load": 0.5}
        server = stack.enter_context(serve(folder, "--registry", "--model", str(here), fake=fake, **places))
        shop = Shop(hub, server)
        server.ready()
        until(lambda: shop.listed(), "the registry answers")
        yield shop


@pytest.fixture
def shop(shared: Shop) -> Shop:
    """The same, with a fast hub, and the first model loaded."""
    shared.hub.faults.rate = None
    shared.ask(
        "POST", "/v1/models/load", json={"model": next(each for each in shared.listed() if repo("first") in each)}
    )
    return shared


def search(page: Browser, words: str) -> None:
    """Search for something on a page with nothing done yet."""
    page.click("#to-models")
    page.sees("#search-field").send_keys(words, Keys.ENTER)


def test_search_download_load_and_back(page: Browser, shop: Shop) -> None:
    shop.hub.faults.rate = RATE
    page.open(shop.server.base)
    search(page, "second")
    page.sees(".found summary", repo("second"), "apache-2.0")
    page.click(".files button", "Get")
    page.sees("#plan dd", file("second"))
    assert "Licence: apache-2.0" in page.text("#plan")
    page.until(lambda: page.focused() == page.find("#plan .primary").text, "the button has the focus")
    page.press(Keys.ENTER)
    page.until(lambda: 0 < float(page.js("return document.querySelector('.job progress')?.value ?? 0")) < 1, "it grows")
    page.sees(".job", file("second"), "MB/s", "left")
    page.sees(".job", file("second"), "done")
    page.click(".job button", "Load")
    page.sees("#view-chat")
    page.sees("#load-text", f"Loading {repo('second')}")
    page.sees("#facts", file("second"))
    page.until(lambda: page.find("#model").is_enabled(), "it can be changed again")
    assert str(page.find("#model").get_attribute("value")).startswith(repo("second"))
    page.choose("#model", next(each for each in shop.listed() if each.startswith(repo("first"))))
    page.sees("#load-text", f"Loading {repo('first')}")
    page.misses("#load")
    page.sees("#facts", file("first"))
    # The one that the server began with has a name of its own.
    (loaded,) = [each["id"] for each in shop.ask("GET", "/v1/models")["data"] if each["loaded"]]
    page.until(lambda: page.find("#model").get_attribute("value") == loaded, "it is shown as it calls itself")
    page.say("Hello")
    page.sees(".message.assistant .markdown > *")
    page.press(Keys.ESCAPE)
    page.answer()
    page.behaved()


def test_a_licence_is_asked_for(page: Browser, shop: Shop) -> None:
    page.open(shop.server.base, PHONE)
    search(page, repo("strict"))
    page.sees("#plan .consent", "I accept its licence (llama3)")
    page.until(lambda: page.focused() == "accept", "the question has the focus")
    assert page.js("return document.documentElement.scrollWidth") == PHONE[0]
    page.click("#plan button", "Download")
    page.sees("#plan .problem", "'llama3', which has to be accepted")
    assert page.focused() == "accept"
    assert not any(each.startswith(repo("strict")) for each in shop.listed())
    page.press(Keys.SPACE)
    page.click("#plan button", "Download")
    page.sees(".job", file("strict"), "done")
    assert any(each.startswith(repo("strict")) for each in shop.listed())
    page.behaved(refused=True)


def test_a_download_is_stopped_and_goes_on(page: Browser, shop: Shop) -> None:
    page.open(shop.server.base)
    page.js(
        """const real = fetch; window.fetch = (at, how) => {
        if (/downloads\\/\\w/.test(at)) window.followed = how.signal;
        return real(at, how); };"""
    )
    search(page, f"{repo('slow')}:Q8_0")
    page.sees("#plan button", "Download")
    shop.hub.faults.rate = RATE / 16
    page.click("#plan button", "Download")
    page.sees(".job", file("slow"), "B/s")
    # Whoever looks elsewhere and comes back, even to a new page, finds it going on; meanwhile nobody listens.
    page.click("#to-chat")
    assert page.js("return window.followed.aborted")
    page.driver.refresh()
    page.click("#to-models")
    page.sees(".job", file("slow"), "B/s")
    page.click(".job button", "Stop")
    page.sees(".job", file("slow"), "stopped")
    assert not any(each.startswith(repo("slow")) for each in shop.listed())
    shop.hub.faults.rate = None
    page.click(".job button", "Go on")
    page.sees(".job", file("slow"), "done")
    assert any(each.startswith(repo("slow")) for each in shop.listed())
    page.behaved()


def test_a_model_that_is_gone_is_told_and_the_old_one_stays(page: Browser, shop: Shop) -> None:
    job = shop.fetched("gone")
    page.open(shop.server.base)
    page.until(lambda: page.all(f'#model option[value="{job["model"]}"]'), "it is listed")
    first = page.find("#model").get_attribute("value")
    Path(job["path"]).unlink()
    page.choose("#model", job["model"])
    page.sees("#notice", f"{job['model']} wasn't loaded: ")
    page.until(lambda: page.find("#model").get_attribute("value") == first, "the old one is shown again")
    page.sees("#state-text", "Ready")
    page.click("#notice-close")
    page.misses("#notice")
    page.behaved(refused=True)


def test_the_file_that_was_asked_for_last_is_the_one_shown(page: Browser, shop: Shop) -> None:
    page.open(shop.server.base)
    page.js(
        """const real = fetch; window.fetch = async (at, how) => {
        const answer = await real(at, how);
        if (String(at).endsWith("inspect") && !window.release) await new Promise((go) => { window.release = go; });
        return answer; };"""
    )
    search(page, repo("first"))
    page.until(lambda: page.js("return Boolean(window.release)"), "the first answer is held back")
    page.find("#search-field").clear()
    search(page, repo("second"))
    page.sees("#plan h3", repo("second"))
    page.driver.execute_async_script("window.release(); setTimeout(arguments[0], 50)")
    assert page.text("#plan h3") == repo("second")


def test_what_the_hub_has_not_is_said(page: Browser, shop: Shop) -> None:
    page.open(shop.server.base)
    search(page, "local/nothing-of-the-kind")
    page.sees("#plan .problem", "nothing-of-the-kind")
    page.sees("#search-state", "Nothing found.")


def test_what_another_client_loads_is_shown(page: Browser, shop: Shop) -> None:
    other = shop.fetched("third")["model"]
    page.open(shop.server.base).sees("#facts", file("first"))
    assert shop.ask("POST", "/v1/models/load", json={"model": other})["loaded"]
    page.until(lambda: page.find("#model").get_attribute("value") == other, "the page shows it")
    page.sees("#facts", file("third"))


def test_without_a_registry_the_reason_is_said(page: Browser, rich: Live) -> None:
    page.open(base_of(rich)).click("#to-models")
    page.sees("#registry-problem", "--no-registry")
    page.misses("#search")
    page.behaved()
