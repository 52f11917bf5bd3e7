"""The figures under vLLM's names: what gateways and dashboards made for it read, equal to ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.live import Live, message, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

MODEL = "smollm2-135m-instruct"
GATEWAY = {
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
}
"""What the Kubernetes gateway's endpoint picker asks a model server for, adapters apart."""
DASHBOARD = {
    "vllm:e2e_request_latency_seconds",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:gpu_cache_usage_perc",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_success",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:num_preemptions",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
}
"""What vLLM's own dashboard shows."""


@pytest.fixture(scope="module")
def server(starter_path: Path) -> Iterator[Live]:
    with running(starter_path, fake={"slots": 2, "step": 0.01}, metrics={"vllm_names": True}) as served:
        yield served


def value(server: Live, name: str, **labels: str) -> float:
    return server.metric(name, model_name=MODEL, engine="0", **labels)


def test_they_are_there_when_asked_for_alone(live: Live, server: Live) -> None:
    assert "vllm:" not in live.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}
    assert families.keys() >= GATEWAY | DASHBOARD
    assert all(families[name].documentation for name in families)


def test_they_are_our_figures(server: Live) -> None:
    for content in ("Tell me of the sea. " * 10, "Tell me of the sea. " * 10, "Hi"):
        server.chat(content, max_tokens=8)
    server.idle()
    for theirs, ours in (
        ("prompt_tokens_total", "prompt_tokens_total"),
        ("generation_tokens_total", "generated_tokens_total"),
        ("prefix_cache_queries_total", "prefix_cache_queries_total"),
        ("prefix_cache_hits_total", "prefix_cache_hits_total"),
        ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_sum"),
        ("inter_token_latency_seconds_sum", "inter_token_seconds_sum"),
        ("time_per_output_token_seconds_count", "inter_token_seconds_count"),
        ("e2e_request_latency_seconds_sum", "request_seconds_sum"),
        ("request_queue_time_seconds_sum", "request_queue_seconds_sum"),
        ("request_prefill_time_seconds_sum", "request_prefill_seconds_sum"),
        ("request_decode_time_seconds_sum", "request_decode_seconds_sum"),
        ("request_prompt_tokens_sum", "request_prompt_tokens_sum"),
        ("request_generation_tokens_sum", "request_generation_tokens_sum"),
        ("iteration_tokens_total_sum", "step_rows_sum"),
    ):
        total = sum(server.samples(f"forgelm_{ours}").values())
        assert total > 0, ours
        assert value(server, f"vllm:{theirs}") == pytest.approx(total), theirs
    assert value(server, "vllm:request_success_total", finished_reason="length") == 3
    assert value(server, "vllm:cache_config_info", block_size="16", num_gpu_blocks="512") == 1


def test_what_a_gateway_decides_by(server: Live) -> None:
    raws = [Raw(server.port).post(message("Hi", max_tokens=3000, stream=True)) for _ in range(3)]
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    until(lambda: [value(server, name) for name in busy] == [2, 1], "two run, one waits")
    assert 0 < value(server, "vllm:kv_cache_usage_perc") < 1
    assert 0 < value(server, "vllm:gpu_cache_usage_perc") < 1
    for raw in raws:
        raw.leave()
    server.idle()
    assert value(server, "vllm:request_success_total", finished_reason="abort") == 3
    assert value(server, "vllm:num_requests_waiting") == value(server, "vllm:kv_cache_usage_perc") == 0
