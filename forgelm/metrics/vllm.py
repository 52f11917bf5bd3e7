"""Our figures under the names that vLLM gives them: what the Kubernetes gateway and published dashboards read.

Made from ours at each scrape; nothing is counted twice. Tokens are told by model; latencies are those of all models
together, under the name of the one that is served.
"""

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forgelm.metrics.instruments import Counter, Gauge, Histogram
from forgelm.metrics.requests import Requests
from forgelm.metrics.steps import Steps

LABELS = ("model_name", "engine")
ENGINE = "0"
"""vLLM numbers the engines of one server."""
BLOCK_TOKENS = 16
"""vLLM's usual block. Our cells are single tokens; readers want the cache's size in blocks."""
REASONS = {"stop": "stop", "length": "length", "abort": "abort", "error": "error", "refused": "error"}


class VllmNames(Collector):
    """A second reading of the same book."""

    def __init__(self, requests: Requests, steps: Steps) -> None:
        self._requests = requests
        self._steps = steps

    def collect(self) -> Iterator[Metric]:
        """prometheus-client's question."""
        yield from self._gauges()
        yield from self._token_counters()
        yield from self._counters()
        yield self._success()
        yield from self._histograms()

    @property
    def _model(self) -> str:
        return self._requests.model

    def _gauges(self) -> Iterator[Metric]:
        requests, steps = self._requests, self._steps
        about: tuple[tuple[str, str, Gauge], ...] = (
            ("num_requests_running", "Number of requests in model execution batches.", steps.running),
            ("num_requests_waiting", "Number of requests waiting to be processed.", requests.waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", steps.usage),
            ("gpu_cache_usage_perc", "Former name of kv_cache_usage_perc.", steps.usage),
        )
        for name, text, gauge in about:
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
            for _, value in gauge.items():
                family.add_metric((self._model, ENGINE), value)
            yield family
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Size of the KV cache.", labels=(*LABELS, "block_size", "num_gpu_blocks")
        )
        for _, cells in steps.cells_total.items():
            family.add_metric((self._model, ENGINE, str(BLOCK_TOKENS), str(int(cells) // BLOCK_TOKENS)), 1)
        yield family

    def _token_counters(self) -> Iterator[Metric]:
        requests = self._requests
        about: tuple[tuple[str, str, Counter], ...] = (
            ("prompt_tokens", "Number of prefill tokens processed.", requests.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", requests.generated_tokens),
        )
        for name, text, counter in about:
            by_model: dict[str, float] = defaultdict(float)
            for (model, _), value in counter.items():
                by_model[model] += value
            family = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            for model, value in by_model.items():
                family.add_metric((model, ENGINE), value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        steps = self._steps
        drafts = sum(buckets[-1][1] for _, buckets, _ in steps.draft_depth.items())
        about = (
            ("num_preemptions", "Cumulative number of preemptions.", steps.preemptions.total),
            ("prefix_cache_queries", "Prefix cache queries, in queried tokens.", steps.queries.total),
            ("prefix_cache_hits", "Prefix cache hits, in cached tokens.", steps.hits.total),
            ("spec_decode_num_drafts", "Number of spec decoding drafts.", drafts),
            ("spec_decode_num_draft_tokens", "Number of draft tokens.", steps.drafted.total),
            ("spec_decode_num_accepted_tokens", "Number of accepted tokens.", steps.accepted.total),
        )
        for name, text, value in about:
            family = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            family.add_metric((self._model, ENGINE), value)
            yield family

    def _success(self) -> Metric:
        ended: dict[tuple[str, str], float] = defaultdict(float)
        for (reason, model, _), value in self._requests.ended.items():
            ended[model, REASONS[reason]] += value
        family = CounterMetricFamily(
            "vllm:request_success", "Count of processed requests.", labels=(*LABELS, "finished_reason")
        )
        for (model, reason), value in ended.items():
            family.add_metric((model, ENGINE, reason), value)
        return family

    def _histograms(self) -> Iterator[Metric]:
        requests = self._requests
        about: tuple[tuple[str, str, Histogram], ...] = (
            ("time_to_first_token_seconds", "Time to first token in seconds.", requests.ttft),
            ("inter_token_latency_seconds", "Inter-token latency in seconds.", requests.itl),
            ("time_per_output_token_seconds", "Former name of inter_token_latency_seconds.", requests.itl),
            ("e2e_request_latency_seconds", "E2E request latency in seconds.", requests.seconds),
            ("request_queue_time_seconds", "Time spent in WAITING phase for request.", requests.queue),
            ("request_prefill_time_seconds", "Time spent in PREFILL phase for request.", requests.prefill),
            ("request_decode_time_seconds", "Time spent in DECODE phase for request.", requests.decode),
            ("request_prompt_tokens", "Number of prefill tokens processed.", requests.prompt_length),
            ("request_generation_tokens", "Number of generation tokens processed.", requests.answer_length),
            ("iteration_tokens_total", "Number of tokens per engine_step.", self._steps.rows),
        )
        for name, text, histogram in about:
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=LABELS)
            for _, bucket_counts, total in histogram.items():
                family.add_metric((self._model, ENGINE), bucket_counts, total)
            yield family
