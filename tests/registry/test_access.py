"""What the server in front calls a request is in every line about it, also of threads that go on after the answer."""

import asyncio
import contextvars
import logging
import threading
from typing import Any

import httpx
import pytest
import structlog
from litestar import Litestar, get
from structlog.testing import LogCapture

from forgelm import log
from forgelm.registry.access import Named
from forgelm.registry.threads import Threads

NAME = "x-request-id"


def _app(threads: Threads) -> Named:
    def work() -> str:
        log.get("registry").info("in a thread")
        return str(structlog.contextvars.get_contextvars().get("request"))

    @get("/work")
    async def asked() -> str:
        return await threads.run(work)

    @get("/broken")
    async def broken() -> str:
        raise ValueError

    return Named(Litestar([asked, broken], openapi_config=None, logging_config=None))


def ask(path: str, **headers: str) -> tuple[httpx.Response, list[Any]]:
    """One request in a loop of its own: the answer, and what was logged."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(_app(Threads()), raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
            return await client.get(path, headers=headers)

    before, capture = structlog.get_config(), LogCapture()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, capture],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )
    try:
        return asyncio.run(go()), capture.entries
    finally:
        structlog.configure(**before)


def test_a_thread_has_the_name() -> None:
    answer, lines = ask("/work", **{NAME: "req_1"})
    assert answer.text == "req_1"
    assert [(line["event"], line["request"]) for line in lines] == [("in a thread", "req_1"), ("request", "req_1")]
    assert (lines[1]["log_level"], lines[1]["route"], lines[1]["status"]) == ("debug", "GET /work", 200)


def test_a_failure_has_its_line() -> None:
    _, lines = ask("/broken", **{NAME: "req_2"})
    assert [(line["request"], line["status"]) for line in lines if line["event"] == "request"] == [("req_2", 500)]


@pytest.mark.parametrize("headers", [{}, {NAME: ""}])
def test_without_a_name_there_is_none(headers: dict[str, str]) -> None:
    answer, lines = ask("/work", **headers)
    assert answer.text == "None"
    assert all("request" not in line for line in lines)


def test_the_name_is_gone_afterwards() -> None:
    with log.about("req_3"):
        inner = contextvars.copy_context()
    assert "request" not in structlog.contextvars.get_contextvars()
    seen: list[Any] = []
    thread = threading.Thread(target=inner.run, args=(lambda: seen.append(structlog.contextvars.get_contextvars()),))
    thread.start()
    thread.join()
    assert seen == [{"request": "req_3"}]
