"""The life of a side process as clients see it: it starts once it is asked something, dies, hangs and is full."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from forgelm import supervisor
from forgelm.api.embeddings import SideModel
from forgelm.config import Embedding, Limits
from forgelm.errors import ModelError
from forgelm.ipc.embeddings import Embed, Forget
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase
from tests.api.beside import EMBEDDINGS, RERANK, Beside, beside
from tests.api.live import until
from tests.api.raw import Raw
from tests.embedders import Embedders

pytestmark = [pytest.mark.model, pytest.mark.server]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.05,))


@contextmanager
def stopped(server: Beside) -> Iterator[None]:
    """While its process stands still: what is asked of it waits."""
    pid = server.ready().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def waiting(server: Beside, count: int) -> None:
    until(lambda: server.metric("forgelm_side_requests_open", kind="embedding") == count, f"{count} are open")


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


# --- start -------------------------------------------------------------------------------------------------------


def test_it_starts_with_the_first_request(embedders: Embedders) -> None:
    with beside(embedders.bert, embedders.ranker) as server:
        model = server.embedder
        assert (model.pid, model.status.phase, model.facts) == (0, Phase.UNLOADED, None)
        assert server.metric("forgelm_side_ready", kind="embedding") == 0
        assert server.http.post(EMBEDDINGS, json={"input": []}).status_code == 400
        assert server.embed("a", model="other").status_code == 404
        assert model.pid == 0, "a request that isn't for it doesn't start it"
        server.ready()
        assert model.facts is not None
        assert model.context == model.facts.context == 96
        assert server.metric("forgelm_side_ready", kind="embedding") == 1
        assert server.models["rerank"].pid == 0, "the other one has nothing to do yet"
        server.ready("rerank")
        assert server.models["rerank"].pid != model.pid


def test_first_requests_at_once_start_one_process(embedders: Embedders) -> None:
    with beside(embedders.bert) as server, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.embed, f"the cat {number}") for number in range(8)]
        assert {answer.result().status_code for answer in answers} == {200}
        children = psutil.Process().children()
        assert [child.pid for child in children if "embedding_main" in " ".join(child.cmdline())] == [
            server.embedder.pid
        ]


def test_requests_at_once_get_their_own_vectors(embedders: Embedders) -> None:
    """Whatever shares a decode with whatever."""
    texts = [[f"the cat {number} {other}" for other in range(number % 7 + 1)] for number in range(40)]
    with beside(embedders.bert) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(server.vectors, texts))
        for asked, found in zip(texts[::9], answers[::9], strict=True):
            assert np.abs(np.array(found) - np.array(server.vectors(asked))).max() < 2e-3


# --- failures ----------------------------------------------------------------------------------------------------


def test_a_model_that_can_not_be_loaded(embedders: Embedders) -> None:
    with beside(embedders.silent, embedders.labelled) as server:
        for _ in range(2):
            answer = server.embed("a")
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert error(answer)["code"] == "engine_unavailable"
            assert "pooled" in error(answer)["message"]
        assert server.embedder.status.phase is Phase.FAILED
        assert "3 labels" in error(server.rank("a", ["b"]))["message"]


def test_a_missing_file_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no embedding model file at"):
        SideModel("embedding", tmp_path / "x.gguf", Embedding(), Limits(), Metrics())


def test_death_in_the_middle(embedders: Embedders) -> None:
    with beside(embedders.bert) as server, ThreadPoolExecutor() as pool:
        with stopped(server):
            answer = pool.submit(server.embed, ["a"] * 100)
            waiting(server, 1)
            before = server.embedder.pid
            os.kill(before, signal.SIGKILL)
            failed = answer.result()
        assert failed.status_code == 503
        assert error(failed)["code"] == "engine_error"
        assert "the embedding model was killed by signal 9" in error(failed)["message"]
        until(lambda: server.embedder.status.phase is Phase.READY, "it is there again")
        assert server.embedder.pid != before
        assert len(server.vectors(["a", "b"])) == 2
        assert server.metric("forgelm_side_requests_total", kind="embedding", reason="error") == 1


def test_while_it_restarts_requests_are_told_to_come_again(
    embedders: Embedders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (50.0,))
    with beside(embedders.bert) as server:
        os.kill(server.ready().pid, signal.SIGKILL)
        until(lambda: server.embedder.status.phase is Phase.RESTARTING, "it was noticed")
        answer = server.embed("a")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "restarting" in error(answer)["message"]


def test_a_hang_ends_it(embedders: Embedders) -> None:
    with beside(embedders.bert, limits={"hang_seconds": 1.0}) as server, ThreadPoolExecutor() as pool:
        before = server.ready().pid
        os.kill(before, signal.SIGSTOP)
        answer = pool.submit(server.embed, "the cat").result()
        assert "no progress" in error(answer)["message"]
        until(lambda: not psutil.pid_exists(before), "it is gone")
        until(lambda: server.embedder.status.phase is Phase.READY, "another one is there")
        assert len(server.vectors("a")) == 1


# --- the queue ---------------------------------------------------------------------------------------------------


def test_a_full_queue(embedders: Embedders) -> None:
    with beside(embedders.bert, limits={"queue": 2}) as server, ThreadPoolExecutor() as pool:
        with stopped(server):
            answers = [pool.submit(server.embed, "the cat") for _ in range(2)]
            waiting(server, 2)
            refused = server.embed("the dog")
            assert refused.status_code == 429
            assert error(refused)["code"] == "queue_full"
            assert refused.headers["retry-after"]
        assert [answer.result().status_code for answer in answers] == [200, 200]
        server.idle()
        assert server.embed("the dog").status_code == 200


def test_a_queue_that_is_full_of_tokens(embedders: Embedders) -> None:
    with beside(embedders.bert, limits={"queue_tokens": 50}) as server, ThreadPoolExecutor() as pool:
        with stopped(server):
            first = pool.submit(server.embed, [[7] * 96] * 3)
            until(lambda: server.metric("forgelm_side_tokens_total", kind="embedding") > 250, "it waits")
            assert error(server.embed("the dog"))["code"] == "queue_full"
        assert first.result().status_code == 200, "one may always wait, however much it is"


def test_too_long_in_the_queue(embedders: Embedders, monkeypatch: pytest.MonkeyPatch) -> None:
    with beside(embedders.bert) as server, stopped(server):
        monkeypatch.setattr(server.embedder._client, "_limits", Limits(queue_seconds=0.2))
        answer = server.embed("the cat")
        assert answer.status_code == 503
        assert "waited" in error(answer)["message"]
        assert error(answer)["code"] == "queue_timeout"
        server.idle()


def test_a_load_that_takes_too_long(embedders: Embedders) -> None:
    with beside(embedders.bert, limits={"queue_seconds": 0.01}) as server:
        answer = server.embed("the cat")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "still loading" in error(answer)["message"]
        until(lambda: server.embedder.status.phase is Phase.READY, "it goes on loading")


# --- clients that leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rudely", [False, True])
def test_a_client_that_leaves_takes_back_what_has_not_begun(
    embedders: Embedders, monkeypatch: pytest.MonkeyPatch, rudely: bool
) -> None:
    sent: list[Any] = []
    with beside(embedders.bert) as server:
        keeper = server.embedder._keeper
        send = keeper.send
        monkeypatch.setattr(keeper, "send", lambda message: (sent.append(message), send(message)))
        with stopped(server), Raw(server.port) as client:
            client.post({"input": ["the cat"] * 2048}, EMBEDDINGS)
            until(lambda: sum(isinstance(message, Embed) for message in sent) > 2048, "all of it was sent on")
            client.leave(rudely=rudely)
            server.idle()
            assert isinstance(sent[-1], Forget)
        assert len(server.vectors(["a", "b"])) == 2
        assert server.metric("forgelm_side_requests_total", kind="embedding", reason="abort") == 1
        assert not any(server.metric("forgelm_errors_total", code=code) for code in ("internal_error", "invalid_value"))


def test_a_client_that_leaves_during_the_load(embedders: Embedders) -> None:
    with beside(rerank=embedders.qwen_ranker) as server:
        with Raw(server.port) as client:
            client.post({"query": "a", "documents": ["b"]}, RERANK)
            until(lambda: server.models["rerank"].pid, "it starts")
            client.leave()
        server.idle("rerank")
        assert server.rank("a", ["b"]).status_code == 200


def test_a_client_that_leaves_while_it_sends(embedders: Embedders) -> None:
    with beside(embedders.bert) as server:
        with Raw(server.port) as client:
            head = f"POST {EMBEDDINGS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
            client.send(head.encode() + b'{"input": ')
        assert server.embed("a").status_code == 200
        assert server.metric("forgelm_errors_total", code="internal_error") == 0


# --- the end -----------------------------------------------------------------------------------------------------


def test_the_end_of_the_server_is_waited_for(embedders: Embedders) -> None:
    """What was asked is answered, by the end of the block its process is gone."""
    answers: list[Future[httpx.Response]] = []
    with ThreadPoolExecutor() as pool, beside(embedders.bert) as server:
        server.ready()
        begun = threading.Event()

        def ask() -> httpx.Response:
            with httpx.Client(base_url=server.base, timeout=60.0, trust_env=False) as client:
                begun.set()
                return client.post(EMBEDDINGS, json={"input": ["the cat"] * 500})

        answers.append(pool.submit(ask))
        assert begun.wait(10)
        waiting(server, 1)
    assert answers[0].result().status_code == 200


def test_whoever_waits_can_be_told_of_the_end(embedders: Embedders) -> None:
    with beside(embedders.bert) as server, ThreadPoolExecutor() as pool:
        with stopped(server):
            answer = pool.submit(server.embed, "the cat")
            waiting(server, 1)
            assert server.loop is not None
            server.loop.call_soon_threadsafe(server.embedder.end_all, "the server is shutting down")
            assert "shutting down" in error(answer.result())["message"]
        assert len(server.vectors("a")) == 1
