"""`/metrics`: parses, and its numbers are those that clients saw."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message, running

pytestmark = pytest.mark.server

EXPECTED = {
    "forgelm_requests_running": "gauge",
    "forgelm_requests_waiting": "gauge",
    "forgelm_requests_open": "gauge",
    "forgelm_kv_cells_used": "gauge",
    "forgelm_kv_cells_cached": "gauge",
    "forgelm_host_tier_bytes": "gauge",
    "forgelm_engine_ready": "gauge",
    "forgelm_engine_restarts": "counter",
    "forgelm_preemptions": "counter",
    "forgelm_prompt_tokens": "counter",
    "forgelm_cached_tokens": "counter",
    "forgelm_generated_tokens": "counter",
    "forgelm_requests": "counter",
    "forgelm_errors": "counter",
    "forgelm_time_to_first_token_seconds": "histogram",
    "forgelm_inter_token_seconds": "histogram",
    "forgelm_draft_tokens": "counter",
    "forgelm_draft_accepted_tokens": "counter",
    "forgelm_draft_depth": "histogram",
    "forgelm_draft_accepted_length": "histogram",
    "forgelm_drafting_seconds": "counter",
}


def test_the_exposition_parses(live: Live) -> None:
    answer = live.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert {family.name: family.type for family in families}.items() >= EXPECTED.items()
    assert all(family.documentation for family in families)


def test_the_numbers_are_those_that_clients_saw(starter_path: Path) -> None:
    """Plain and streamed, ended by length and by a stop string, refused before and after decoding."""
    with running(starter_path) as server:
        answers = [server.chat("Hi " * n, max_tokens=n).json() for n in (1, 5, 30)]
        answers.append(server.post(TEXT, {"prompt": "Hi", "max_tokens": 7}).json())
        stop = expected.pieces(server, 9)[8]
        answers.append(server.post(TEXT, {"prompt": list(expected.PROMPT), "max_tokens": 90, "stop": stop}).json())
        options = {"include_usage": True}
        answers.append(server.stream("Hello", max_tokens=12, stream_options=options).events[-1])
        assert server.post(CHAT, b"{").status_code == 400
        assert server.chat(temperature=9).status_code == 400
        assert server.chat(model="other").status_code == 404
        assert server.chat("word " * 9000).status_code == 400
        server.idle()
        usages = [answer["usage"] for answer in answers]
        prompt, completion = (sum(usage[f"{kind}_tokens"] for usage in usages) for kind in ("prompt", "completion"))
        assert server.metric("forgelm_prompt_tokens_total") == prompt
        assert server.metric("forgelm_generated_tokens_total") == completion
        assert server.metric("forgelm_requests_total", reason="length") == 5
        assert server.metric("forgelm_requests_total", reason="stop") == 1
        assert server.metric("forgelm_time_to_first_token_seconds_count") == 6
        assert server.metric("forgelm_inter_token_seconds_count") == completion - 6
        assert server.metric("forgelm_errors_total", code="invalid_value") == 2
        assert server.metric("forgelm_errors_total", code="model_not_found") == 1
        assert server.metric("forgelm_errors_total", code="context_length_exceeded") == 1
        assert server.metric("forgelm_kv_cells_used") == 0
        assert server.metric("forgelm_engine_ready") == 1


def test_gauges_while_requests_run_and_wait(starter_path: Path) -> None:
    from tests.api.live import until
    from tests.api.raw import Raw

    with running(starter_path, fake={"slots": 2, "step": 0.01}) as server:
        raws = [Raw(server.port).post(message("Hi", max_tokens=3000, stream=True)) for _ in range(5)]
        until(lambda: server.gauges() == (2, 3, 5), "two run, three wait")
        assert server.metric("forgelm_kv_cells_used") > 0
        for raw in raws:
            raw.leave()
        server.idle()
        assert server.metric("forgelm_requests_total", reason="abort") == 5
