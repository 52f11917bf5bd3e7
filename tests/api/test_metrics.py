"""`/metrics`: parses, and its numbers are those that clients saw."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api import expected
from tests.api.live import CHAT, TEXT, Live, message, running, until
from tests.api.raw import Raw

pytestmark = pytest.mark.server

NAMES = {
    "counter": """
        aborts cached_tokens computed_rows decodes download_bytes downloads draft_accepted_tokens draft_tokens
        drafting_seconds engine_restarts errors generated_tokens host_seconds output_rows preemptions
        prefix_cache_hits prefix_cache_queries process_cpu_seconds prompt_tokens requests side_requests side_tokens
        ubatches
        """,
    "gauge": """
        build_info engine_ready engine_state gpu_memory_total_bytes gpu_memory_used_bytes gpu_power_watts gpu_present
        gpu_temperature_celsius gpu_utilisation_ratio host_tier_bytes kv_cells kv_cells_cached kv_cells_highest
        kv_cells_used kv_usage_ratio model_cpu_share model_info model_load_percent model_load_seconds
        process_resident_bytes requests_open requests_running requests_waiting side_ready side_requests_open
        start_time_seconds downloads_running
        """,
    "histogram": """
        draft_accepted_length draft_depth inter_token_seconds request_decode_seconds request_generation_tokens
        request_prefill_seconds request_prompt_tokens request_queue_seconds request_seconds step_rows step_seconds
        time_to_first_token_seconds
        """,
}
EXPECTED = {f"forgelm_{name}": kind for kind, names in NAMES.items() for name in names.split()}


def test_the_exposition_parses_and_has_these_names(live: Live) -> None:
    answer = live.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    assert {family.name: family.type for family in families} == EXPECTED
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
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert server.metric("forgelm_prompt_tokens_total") == prompt
        assert server.metric("forgelm_generated_tokens_total") == completion
        assert server.metric("forgelm_cached_tokens_total") == cached
        assert server.metric("forgelm_requests_total", reason="length") == 5
        assert server.metric("forgelm_requests_total", reason="stop") == 1
        assert server.samples("forgelm_aborts_total") == {}
        assert server.metric("forgelm_time_to_first_token_seconds_count") == 6
        assert server.metric("forgelm_inter_token_seconds_count") == completion - 6
        assert server.metric("forgelm_request_prompt_tokens_sum") == prompt
        assert server.metric("forgelm_request_generation_tokens_sum") == completion
        assert server.samples("forgelm_errors_total") == {
            (("code", "invalid_value"),): 2,
            (("code", "model_not_found"),): 1,
            (("code", "context_length_exceeded"),): 1,
        }
        assert server.metric("forgelm_kv_cells_used") == server.metric("forgelm_kv_usage_ratio") == 0
        assert server.metric("forgelm_kv_cells") == 8192
        assert server.metric("forgelm_engine_ready") == 1


def test_steps_add_up(starter_path: Path) -> None:
    """Of one request at a time with the fake engine: a step for the prompt, one for each further token."""
    with running(starter_path, cache={"prefix_cache": False}) as server:
        answer = server.chat("Hi", max_tokens=6).json()["usage"]
        server.idle()
        assert server.metric("forgelm_step_seconds_count") == server.metric("forgelm_decodes_total") == 6
        assert server.metric("forgelm_ubatches_total") == server.metric("forgelm_output_rows_total") == 6
        assert server.metric("forgelm_computed_rows_total", phase="prefill") == answer["prompt_tokens"]
        assert server.metric("forgelm_computed_rows_total", phase="decode") == 5
        assert server.metric("forgelm_step_rows_sum") == answer["prompt_tokens"] + 5
        assert server.metric("forgelm_step_seconds_sum") == pytest.approx(6 * 0.002)
        assert server.metric("forgelm_prefix_cache_queries_total") == answer["prompt_tokens"]
        assert server.metric("forgelm_prefix_cache_hits_total", tier="device") == 0


def test_tokens_that_the_prefix_cache_had(starter_path: Path) -> None:
    with running(starter_path) as server:
        first = server.chat("Tell me of the sea. " * 10, max_tokens=2).json()["usage"]
        second = server.chat("Tell me of the sea. " * 10, max_tokens=2).json()["usage"]
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert cached > 50
        server.idle()
        asked = first["prompt_tokens"] + second["prompt_tokens"]
        assert server.metric("forgelm_prefix_cache_queries_total") == asked
        assert server.samples("forgelm_prefix_cache_hits_total") == {
            (("tier", "device"),): cached,
            (("tier", "host"),): 0,
            (("tier", "disk"),): 0,
        }
        assert server.metric("forgelm_kv_cells_cached") > 50
        assert server.metric("forgelm_kv_cells_highest") > 50


def test_gauges_while_requests_run_and_wait(starter_path: Path) -> None:
    with running(starter_path, fake={"slots": 2, "step": 0.01}) as server:
        raws = [Raw(server.port).post(message("Hi", max_tokens=3000, stream=True)) for _ in range(5)]
        until(lambda: server.gauges() == (2, 3, 5), "two run, three wait")
        used = server.metric("forgelm_kv_cells_used")
        assert used > 0
        assert server.metric("forgelm_kv_usage_ratio") >= used / 8192
        until(lambda: server.service.metrics.rates()[1] > 0, "tokens per second")
        for raw in raws:
            raw.leave()
        server.idle()
        assert server.metric("forgelm_requests_total", reason="abort") == 5
        assert server.metric("forgelm_aborts_total", reason="client_left") == 5


def test_preemptions(starter_path: Path) -> None:
    """Two answers that don't fit beside each other: one steps back, and both are whole."""
    with running(starter_path, fake={"context": 512, "slots": 2}, cache={"prefix_cache": False}) as server:
        raws = [Raw(server.port).post(message("Hi", max_tokens=400)) for _ in range(2)]
        for raw in raws:
            raw.read_until(b'"usage"')
        server.idle()
        assert server.metric("forgelm_preemptions_total") >= 1
        assert server.metric("forgelm_requests_total", reason="length") == 2
        for raw in raws:
            raw.leave()


def test_facts_of_the_model_and_the_build(live: Live) -> None:
    ((labels, value),) = live.samples("forgelm_model_info").items()
    assert value == 1
    facts = dict(labels)
    assert facts["model"] == "smollm2-135m-instruct"
    assert (facts["profile"], facts["quant"], facts["architecture"]) == ("starter", "Q4_1", "fake")
    assert (facts["kv_type"], facts["context"], facts["slots"]) == ("f16", "8192", "8")
    ((labels, value),) = live.samples("forgelm_build_info").items()
    assert dict(labels).keys() == {"version", "python", "llama_cpp_python"}
    states = {dict(labels)["state"]: value for labels, value in live.samples("forgelm_engine_state").items()}
    assert states.pop("ready") == 1
    assert set(states.values()) == {0}
    assert live.metric("forgelm_model_cpu_share") == 1
    assert "forgelm_model_load_percent" not in {name for name, _ in _lines(live)}
    assert dict(_lines(live))["forgelm_start_time_seconds"] > 1e9


def _lines(live: Live) -> list[tuple[str, float]]:
    text = live.http.get("/metrics").text
    return [(s.name, s.value) for family in text_string_to_metric_families(text) for s in family.samples]


def test_what_clients_make_up_is_no_label(live: Live) -> None:
    live.chat(model="made/up:NAME")
    live.http.get("/made/up")
    live.http.get("/v1/models/made-up")
    assert "made" not in live.http.get("/metrics").text


def test_processes(live: Live) -> None:
    live.chat("Hi", max_tokens=50)
    resident = {dict(labels)["role"]: value for labels, value in live.samples("forgelm_process_resident_bytes").items()}
    assert resident.keys() == {"api", "engine"}
    assert all(10e6 < value < 4e9 for value in resident.values())
    before = live.metric("forgelm_process_cpu_seconds_total", role="api")
    assert before > 0
    for _ in range(20):
        live.chat("Hi", max_tokens=50)
    assert live.metric("forgelm_process_cpu_seconds_total", role="api") > before
