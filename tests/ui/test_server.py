"""The page and `forgelm serve` itself: one that ends and comes back, and a real model."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.processes.serving import serve
from tests.ui.browser import Browser

pytestmark = [pytest.mark.server, pytest.mark.model]


def test_a_server_that_comes_back_is_noticed(page: Browser, starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, fake={"step": 0.01}) as server:
        page.open(server.ready().base).sees("#state-text", "Ready")
        page.say("Hello")
        page.sees(".message.assistant .markdown > *")
        port = server.port
        server.process.kill()
        server.end()
        page.answer()
        page.sees(".message.assistant .problem", "can't be reached")
        assert page.text(".markdown"), "what came before stays"
        page.sees("#state-text", "Not reachable, trying again…")
    again = tmp_path / "again"
    again.mkdir()
    with serve(again, "--port", str(port), fake={"step": 0.002}):
        page.sees("#state-text", "Ready")
        page.click(".message.assistant button", "Regenerate")
        page.sees(".message.assistant[aria-busy='true'] .markdown > *")
        page.press(Keys.ESCAPE)
        page.answer()
        page.behaved(refused=True)
        page.leave()


def test_a_real_model_from_end_to_end(page: Browser, starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        page.open(server.ready().base).click("#settings > summary")
        page.find("#set-max_tokens").send_keys("24")
        page.find("#set-temperature").send_keys("0")
        page.say("Name three colours.")
        assert page.answer().text
        body = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 24, "temperature": 0}
        whole = server.http.post(f"{server.base}/v1/chat/completions", json=body).json()
        said = page.js("return JSON.parse(sessionStorage.getItem('forgelm.chat'))[1].content")
        assert said == whole["choices"][0]["message"]["content"]
        assert f"prompt {whole['usage']['prompt_tokens']}" in page.text(".figures")
        page.sees("#facts", starter_path.name)
        page.behaved()
        page.leave()
