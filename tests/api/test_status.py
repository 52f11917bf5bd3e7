"""`GET /status`, and llama-server's `/slots` and `/props`: true in every phase, without a word of anybody's."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm import __version__
from forgelm.ipc.status import ServerStatus
from tests import models
from tests.api.live import CHAT, Live, message, running, until

pytestmark = pytest.mark.server

WORD = "zanzibar"


def status_of(live: Live) -> ServerStatus:
    """What it tells, as the types say."""
    answer = live.http.get("/status")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return msgspec.json.decode(answer.content, type=ServerStatus)


@contextmanager
def streaming(live: Live, **fields: Any) -> Iterator[str]:
    """A request that lasts for as long as the block; its id."""
    body = message(f"Tell me of {WORD}", max_tokens=5000, stream=True, **fields)
    with live.http.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield answer.headers["x-request-id"]


@pytest.fixture(scope="module")
def slow(starter_path: Path) -> Iterator[Live]:
    """Two slots, and answers that last."""
    with running(starter_path, fake={"step": 0.02, "slots": 2}) as server:
        yield server


def test_at_rest(live: Live) -> None:
    found = status_of(live)
    assert (found.version, found.state, found.percent, found.reason) == (__version__, "ready", None, "")
    assert 0 < found.started_at <= time.time()
    assert (found.running, found.waiting, found.requests, found.restarts) == (0, 0, (), 0)
    (model,) = found.models
    assert (model.id, model.kind, model.state) == ("smollm2-135m-instruct", "chat", "ready")
    assert (model.file, model.profile) == ("SmolLM2-135M-Instruct.Q4_1.gguf", "starter")
    assert (model.architecture, model.quant, model.context, model.slots) == ("llama", "Q4_1", 8192, 8)
    assert (model.kv_type, model.devices) == ("f16", ("fake",))
    assert model.loaded_at is not None
    assert found.started_at <= model.loaded_at <= time.time()
    assert found.cache is not None
    assert (found.cache.cells, found.cache.used) == (8192, 0)


def test_the_processes_are_those_that_live(live: Live) -> None:
    found = {each.role: each for each in status_of(live).processes}
    assert set(found) == {"api", "engine"}
    assert found["engine"].pid == live.supervisor.pid
    for each in found.values():
        assert each.rss_bytes > 1 << 20
        assert each.cpu_seconds >= 0


def test_open_requests(slow: Live) -> None:
    """Two run and one waits, each as far as it is."""
    with streaming(slow) as first, streaming(slow, n=1) as second:
        until(lambda: [each.stage for each in status_of(slow).requests] == ["decode", "decode"], "both are answered")
        with streaming(slow) as third:
            found = status_of(slow)
            assert [each.id for each in found.requests] == [first, second, third]
            assert [each.stage for each in found.requests] == ["decode", "decode", "waiting"]
            assert (found.running, found.waiting) == (2, 1)
            assert found.cache is not None
            assert found.cache.used > 0
            for each in found.requests:
                assert (each.model, each.choices) == ("smollm2-135m-instruct", 1)
                assert each.prompt_tokens > 10
                assert (each.generated_tokens > 0) == (each.stage == "decode")
                assert each.seconds >= 0
            later = until(
                lambda: next(
                    (
                        new
                        for new in status_of(slow).requests
                        if new.generated_tokens > found.requests[0].generated_tokens + 5
                    ),
                    None,
                ),
                "it grows",
            )
            assert later.id in (first, second)
            assert status_of(slow).decode_tokens_per_second > 0
            assert WORD not in slow.http.get("/status").text + slow.http.get("/slots").text
    slow.idle()
    assert status_of(slow).requests == ()


def test_tokens_of_an_answer_that_comes_in_one_piece_are_counted(slow: Live) -> None:
    """All choices'."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(slow.post, CHAT, message("Hi", max_tokens=40, n=2))
        found = until(lambda: [e for e in status_of(slow).requests if e.generated_tokens > 10], "some are there")
        assert (found[0].choices, found[0].stage) == (2, "decode")
        assert answer.result().json()["usage"]["completion_tokens"] == 80


def test_while_loading(starter_path: Path) -> None:
    with running(starter_path, fake={"load": 1.5}, wait=False) as server:
        found = until(lambda: (s := status_of(server)).state == "loading" and s.models and s, "it tells of the load")
        assert found.percent is not None
        assert 0 <= found.percent <= 100
        assert (found.models[0].state, found.models[0].loaded_at) == ("loading", None)
        assert found.cache is None


def test_when_it_can_not_be_started_again(starter_path: Path) -> None:
    with running(starter_path, fake={"crash_at": 1}) as server:
        server.chat(max_tokens=1)
        found = until(lambda: (s := status_of(server)).restarts and s, "a restart is counted")
        assert found.state in ("restarting", "loading", "ready")
        assert found.models[0].id == "smollm2-135m-instruct"


def test_unloaded(starter_path: Path) -> None:
    """The model is told of that the next request would load; asking wakes nothing."""
    with running(starter_path) as server:
        server.post("/v1/models/unload")
        for path in ("/status", "/props", "/status"):
            assert server.http.get(path).status_code == 200
        found = status_of(server)
        assert (found.state, found.models[0].state, found.cache) == ("unloaded", "unloaded", None)
        assert found.models[0].file == "SmolLM2-135M-Instruct.Q4_1.gguf"
        assert [each.role for each in found.processes] == ["api"]
        assert server.http.get("/props").json()["is_sleeping"] is True
        assert server.http.get("/slots").status_code == 503
        server.chat(max_tokens=1)
        assert status_of(server).state == "ready"
        server.engines.add(server.supervisor.pid)


def test_a_key_is_wanted_where_there_is_one(starter_path: Path) -> None:
    with running(starter_path, keys=("right",)) as server:
        for path in ("/status", "/slots", "/props"):
            assert server.http.get(path).status_code == 401
            assert server.http.get(path, headers={"Authorization": "Bearer right"}).status_code == 200


# --- llama-server's ---


def test_slots_at_rest(slow: Live) -> None:
    slow.idle()
    found = slow.http.get("/slots").json()
    assert found == [
        {"id": 0, "n_ctx": 8192, "speculative": False, "is_processing": False},
        {"id": 1, "n_ctx": 8192, "speculative": False, "is_processing": False},
    ]


def test_slots_that_are_taken(slow: Live) -> None:
    assert slow.http.get("/slots?fail_on_no_slot=1").status_code == 200
    with streaming(slow):
        until(
            lambda: [each["is_processing"] for each in slow.http.get("/slots").json()] == [True, False], "one is taken"
        )
        until(lambda: slow.http.get("/slots").json()[0]["next_token"][0]["n_decoded"] > 0, "it is answered")
        slot = slow.http.get("/slots").json()[0]
        assert slot["next_token"][0]["has_next_token"] is True
        assert slot["n_prompt_tokens"] == slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"]
        assert slow.http.get("/slots?fail_on_no_slot=1").status_code == 200
        with streaming(slow, n=2):
            until(lambda: all(each["is_processing"] for each in slow.http.get("/slots").json()), "both are taken")
            assert slow.http.get("/slots?fail_on_no_slot=1").status_code == 503
    slow.idle()


def test_a_request_that_stepped_back_has_no_slot(starter_path: Path) -> None:
    """Two answers that don't fit beside each other: both have begun, and one waits for the other's memory."""
    fake = {"context": 512, "slots": 2, "step": 0.01}
    with running(starter_path, fake=fake, cache={"prefix_cache": False}) as server, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.chat, max_tokens=400) for _ in range(2)]

        def one_stepped_back() -> bool:
            taken = [each["is_processing"] for each in server.http.get("/slots").json()]
            # Looked at later: whoever is open now was so before.
            return (
                taken == [True, False] and [e.generated_tokens > 50 for e in status_of(server).requests] == [True] * 2
            )

        until(one_stepped_back, "one steps back")
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_props(live: Live, starter_path: Path, starter_template: str) -> None:
    found = live.http.get("/props").json()
    assert found["model_path"] == str(starter_path)
    assert (found["model_alias"], found["model_ftype"]) == ("smollm2-135m-instruct", "Q4_1")
    assert (found["total_slots"], found["default_generation_settings"]["n_ctx"]) == (8, 8192)
    assert (found["chat_template"], found["bos_token"], found["eos_token"]) == (
        starter_template,
        "<|im_start|>",
        "<|im_end|>",
    )
    params = found["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_p"]) == (0.2, 0.9), "as the profile says"
    assert (params["repeat_penalty"], params["mirostat"]) == (1.0, 0)
    assert found["modalities"] == {"vision": False, "video": False, "audio": False}


# --- models beside the chat model ---


@pytest.mark.model
def test_side_models(starter_path: Path) -> None:
    """Known before they are loaded; then with their process."""
    from forgelm.api.service import Beside

    path = models.embedders().bert
    with running(starter_path, beside=[Beside("embedding", path, log_level="error")]) as server:
        before = status_of(server).models[1]
        assert (before.kind, before.state, before.file, before.loaded_at) == ("embedding", "unloaded", path.name, None)
        assert server.post("/v1/embeddings", {"input": "x"}).status_code == 200
        found = status_of(server)
        after = found.models[1]
        assert (after.state, after.devices, after.architecture) == ("ready", ("CPU",), "bert")
        assert after.parameters > 0
        assert after.loaded_at is not None
        assert "embedding" in {each.role for each in found.processes}
