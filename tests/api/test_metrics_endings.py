"""Every request that ends early is counted once, with its cause; and nothing that was counted is ever forgotten."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from forgelm.api.engine_client import IDLE, EngineClient
from forgelm.api.mailbox import Job
from forgelm.config import Limits
from forgelm.ipc.messages import Delta, FinishReason, Sampling, Step
from forgelm.metrics import Metrics
from tests.api import expected
from tests.api.live import TEXT, Live, message, running, until
from tests.api.raw import Raw
from tests.api.test_generation import Engine
from tests.api.test_switching import FIRST, QUICK, Models

pytestmark = pytest.mark.server


def ended(server: Live) -> dict[str, float]:
    """Requests by finish reason, over all models."""
    found: dict[str, float] = {}
    for labels, value in server.samples("forgelm_requests_total").items():
        reason = dict(labels)["reason"]
        found[reason] = found.get(reason, 0) + value
    return found


def aborts(server: Live) -> dict[str, float]:
    return {dict(labels)["reason"]: value for labels, value in server.samples("forgelm_aborts_total").items()}


def errors(server: Live) -> dict[str, float]:
    return {dict(labels)["code"]: value for labels, value in server.samples("forgelm_errors_total").items()}


def test_a_client_that_leaves_and_a_stop_string(starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.01}) as server:
        stop = expected.pieces(server, 9)[8]
        server.post(TEXT, {"prompt": list(expected.PROMPT), "max_tokens": 90, "stop": stop})
        with Raw(server.port).chat(max_tokens=3000, stream=True, n=3) as raw:
            raw.read_until(b"data: ", 5)
        server.idle()
        assert (ended(server), aborts(server), errors(server)) == ({"stop": 1, "abort": 1}, {"client_left": 1}, {})
        assert server.metric("forgelm_request_seconds_count") == 1


def test_a_queue_that_is_full_and_one_that_takes_too_long(starter_path: Path) -> None:
    limits = {"queue": 1, "queue_seconds": 0.5}
    with running(starter_path, fake={"step": 0.02, "slots": 1}, limits=limits) as server, ThreadPoolExecutor() as pool:
        runs = pool.submit(server.chat, max_tokens=150)
        until(lambda: server.gauges()[0] == 1, "one runs")
        waits = pool.submit(server.chat)
        until(lambda: server.gauges()[1] == 1, "one waits")
        assert server.chat().status_code == 429
        assert waits.result().status_code == 503
        assert runs.result().status_code == 200
        server.idle()
        assert ended(server) == {"error": 1, "length": 1}
        assert aborts(server) == {"queue_timeout": 1}
        assert errors(server) == {"queue_full": 1, "queue_timeout": 1}


def test_an_engine_that_dies_takes_no_counter_along(starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.01, "slots": 2}) as server, ThreadPoolExecutor() as pool:
        server.chat("word " * 50, max_tokens=20)
        server.chat("word " * 50, max_tokens=20)
        counted = totals(server)
        assert counted["forgelm_prefix_cache_hits_total"] > 0
        streams = [pool.submit(server.stream, max_tokens=4000) for _ in range(2)]
        until(lambda: server.gauges()[0] == 2, "both run")
        before = server.metric("forgelm_process_cpu_seconds_total", role="engine")
        os.kill(server.supervisor.pid, signal.SIGKILL)
        assert all(stream.result().error for stream in streams)
        until(lambda: server.metric("forgelm_engine_ready") == 0, "the pause before the restart")
        assert server.metric("forgelm_kv_cells_used") == server.metric("forgelm_requests_running") == 0
        assert server.metric("forgelm_engine_state", state="restarting") == 1
        assert server.samples("forgelm_model_info") == server.samples("forgelm_kv_cells") == {}
        assert server.metric("forgelm_process_cpu_seconds_total", role="engine") >= before
        until(lambda: server.metric("forgelm_engine_ready") == 1, "the engine is back")
        server.chat(max_tokens=3)
        server.idle()
        assert ended(server) == {"length": 3, "error": 2}
        assert aborts(server) == {"engine_down": 2}
        assert errors(server) == {"engine_error": 2}
        assert server.metric("forgelm_engine_restarts_total") == 1
        assert server.metric("forgelm_process_cpu_seconds_total", role="engine") >= before
        assert_none_fell(counted, totals(server))


def totals(server: Live) -> dict[str, float]:
    """Sums of all counters and of what histograms have counted."""
    found: dict[str, float] = {}
    for line in server.http.get("/metrics").text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if not line.startswith("#") and name.endswith(("_total", "_count", "_sum")):
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def assert_none_fell(before: dict[str, float], after: dict[str, float]) -> None:
    assert before.keys() <= after.keys()
    fell = {name: (value, after[name]) for name, value in before.items() if after[name] < value}
    assert not fell


def test_another_model_counts_on(starter_path: Path) -> None:
    """Tokens are told by model; everything else goes on from where it was."""
    models = Models(starter_path, **{FIRST: QUICK, "other": QUICK})
    with running(starter_path, launcher=models, switching={"on_request": True}) as server:
        models.live = server
        server.chat(max_tokens=7)
        counted = totals(server)
        assert server.chat(model="other", max_tokens=9).status_code == 200
        server.idle()
        tokens = {
            dict(labels)["model"]: value for labels, value in server.samples("forgelm_generated_tokens_total").items()
        }
        assert tokens == {FIRST: 7, "other": 9}
        assert server.metric("forgelm_requests_total", model="other", profile="other", reason="length") == 1
        ((labels, _),) = server.samples("forgelm_model_info").items()
        assert dict(labels)["model"] == "other"
        assert_none_fell(counted, totals(server))
        # Who made the model change has waited for it.
        assert server.metric("forgelm_request_queue_seconds_sum") >= QUICK["load"]
        server.chat(model=FIRST, max_tokens=2)
        server.idle()
        assert server.metric("forgelm_generated_tokens_total", model=FIRST) == 9


def test_a_model_that_makes_way_ends_whoever_is_too_long(starter_path: Path) -> None:
    models = Models(starter_path, **{FIRST: QUICK, "other": QUICK})
    switching = {"on_request": True, "drain_seconds": 0.2}
    with (
        running(starter_path, launcher=models, switching=switching, fake={"step": 0.02}) as server,
        ThreadPoolExecutor() as pool,
    ):
        models.live = server
        stream = pool.submit(server.stream, max_tokens=4000)
        until(lambda: server.gauges()[0] == 1, "it runs")
        assert server.chat(model="other", max_tokens=2).status_code == 200
        assert stream.result().error
        server.idle()
        assert (aborts(server), errors(server)) == ({"model_change": 1}, {"engine_error": 1})


def test_a_client_that_leaves_before_the_model_is_there(starter_path: Path) -> None:
    models = Models(starter_path, **{FIRST: QUICK, "slow": {**QUICK, "load": 1.0}})
    with running(starter_path, launcher=models, switching={"on_request": True}) as server:
        models.live = server
        raw = Raw(server.port).post(message("Hi", model="slow", max_tokens=2))
        until(lambda: server.metric("forgelm_engine_state", state="loading") == 1, "it loads")
        raw.leave()
        until(lambda: aborts(server) == {"client_left": 1}, "it is counted")
        assert errors(server) == {}
        until(lambda: server.metric("forgelm_engine_ready") == 1, "the model is there all the same")


def test_a_bug_of_ours_is_no_clients_leaving(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said inside a stream, and as a 500; each is one error and one request."""
    with running(starter_path, fake={"step": 0.01}) as server:
        monkeypatch.setattr(server.text.vocabulary, "pieces", {})
        assert server.stream(max_tokens=50).error
        assert server.chat(max_tokens=50).status_code == 500
        server.idle()
        assert aborts(server) == {"internal_error": 2}
        assert errors(server) == {"internal_error": 2}
        assert ended(server) == {"abort": 2}


def test_an_engine_that_cant_compute_a_request(starter_path: Path) -> None:
    """The fake one has no grammars."""
    with running(starter_path) as server:
        assert server.chat(guided_regex="[0-9]+", max_tokens=5).status_code == 503
        server.idle()
        assert (ended(server), aborts(server), errors(server)) == (
            {"error": 1},
            {"engine_error": 1},
            {"engine_error": 1},
        )


@pytest.mark.parametrize(
    "reasons", [("refused", "stop"), ("stop", "refused"), ("refused", "abort"), ("refused", "length")]
)
def test_a_request_ends_by_the_worst_of_its_choices(reasons: tuple[FinishReason, FinishReason]) -> None:
    """Its client was told of that one, whatever became of the others before or after."""
    metrics = Metrics()
    client = EngineClient(Limits(), metrics)
    client.attach(Engine(), "model", "profile")  # type: ignore[arg-type]
    ticket = client.submit(Job(b"\0\0\0\0", 10, Sampling(), (4,), choices=2))
    for choice, reason in enumerate(reasons):
        if reason == "abort":
            client.abort(ticket)
        else:
            client.on_step(Step((Delta(ticket.id, (1,), reason, choice),), IDLE))
    client.abort(ticket)
    requests = metrics.requests
    assert dict(requests.ended.items()) == {("refused", "model", "profile"): 1}
    assert dict(requests.errors.items()) == {("invalid_value",): 1}
    assert dict(requests.aborts.items()) == {}


def test_the_last_scrape_of_a_server_that_stops(starter_path: Path) -> None:
    """Whoever outlasts the drain is counted as the server's own doing."""
    with running(starter_path, fake={"step": 0.02}) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(server.chat(max_tokens=4000)))
        thread.start()
        until(lambda: server.gauges()[0] == 1, "it runs")
        server.on_loop(lambda: server.service.end_all("the server is shutting down"))
        thread.join(30)
        server.idle()
        assert answers[0].status_code == 503
        assert (aborts(server), errors(server)) == ({"shutdown": 1}, {"engine_error": 1})


def test_a_scrape_while_there_is_no_engine_yet(starter_path: Path) -> None:
    with running(starter_path, fake={"load": 2.0}, wait=False) as server:
        text = until(lambda: _scrape(server), "the API answers")
        assert 'forgelm_engine_state{state="loading"} 1.0' in text
        assert "forgelm_engine_ready 0.0" in text
        assert "forgelm_model_load_percent" in text
        assert "\nforgelm_model_info{" not in text
        until(lambda: server.metric("forgelm_engine_ready") == 1, "the engine is there")
        server.engines.add(server.supervisor.pid)
        assert server.metric("forgelm_model_load_seconds") == 2.0


def _scrape(server: Live) -> str:
    try:
        return server.http.get("/metrics").text
    except httpx.TransportError:
        return ""
