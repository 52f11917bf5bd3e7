"""The server's Prometheus metrics: one object, owned by the API process.

Gauges read the engine's last reported state when scraped, so that a step costs no metric work; counters and histograms
are written where the event is seen.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Kind = TypeVar("Kind", Counter, Gauge, Histogram)

# vLLM's buckets, so that dashboards made for it compare.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
DRAFT_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Tokens."""
LENGTH_BUCKETS = (0, *DRAFT_BUCKETS)


class Metrics:
    """Everything `/metrics` shows. Names are `forgelm_*`; counters are never reset."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._gauge("requests_running", "Sequences that have a slot in the engine")
        self.waiting = self._gauge("requests_waiting", "Requests in the queue")
        self.open = self._gauge("requests_open", "Requests accepted and not ended yet")
        self.cells = self._gauge("kv_cells_used", "KV cells held by running sequences")
        self.cells_cached = self._gauge("kv_cells_cached", "KV cells held by finished requests alone, free to be taken")
        self.host_bytes = self._gauge("host_tier_bytes", "RAM that saved prefixes and checkpoints take")
        self.ready = self._gauge("engine_ready", "1 while the engine takes requests")
        self.restarts = self._gauge("engine_restarts", "Engine restarts since the server started")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens taken from memory instead of computed")
        self.generated_tokens = self._counter("generated_tokens", "Tokens generated")
        self.preemptions = self._gauge("preemptions", "Sequences that gave their memory back, since the engine started")
        self.requests = Counter(
            "forgelm_requests", "Requests ended, by finish reason", ["reason"], registry=self.registry
        )
        self.errors = Counter("forgelm_errors", "Requests refused or failed, by code", ["code"], registry=self.registry)
        self.ttft = Histogram(
            "forgelm_time_to_first_token_seconds",
            "From arrival to the first token",
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.itl = Histogram(
            "forgelm_inter_token_seconds",
            "Between consecutive tokens of one request",
            buckets=ITL_BUCKETS,
            registry=self.registry,
        )
        self.drafted = self._by_drafter(Counter, "draft_tokens", "Tokens guessed ahead and computed")
        self.accepted = self._by_drafter(Counter, "draft_accepted_tokens", "Guessed tokens that were right")
        self.draft_depth = self._by_drafter(
            Histogram, "draft_depth", "Tokens guessed at once for one sequence", buckets=DRAFT_BUCKETS
        )
        self.draft_accepted_length = self._by_drafter(
            Histogram, "draft_accepted_length", "How many of those were right", buckets=LENGTH_BUCKETS
        )
        self.drafting_seconds = self._counter("drafting_seconds", "Time spent on guessing")
        self.side_requests = self._by_kind(Counter, "side_requests", "Requests to a side model ended", "reason")
        self.side_tokens = self._by_kind(Counter, "side_tokens", "Tokens of the texts that side models were sent")
        self.side_open = self._by_kind(Gauge, "side_requests_open", "Requests to a side model not ended yet")
        self.side_ready = self._by_kind(Gauge, "side_ready", "1 while the process of a side model takes requests")

    def guessed(self, drafter: str, drafted: int, accepted: int) -> None:
        """What became of one sequence's guesses in a step."""
        self.drafted.labels(drafter).inc(drafted)
        self.accepted.labels(drafter).inc(accepted)
        self.draft_depth.labels(drafter).observe(drafted)
        self.draft_accepted_length.labels(drafter).observe(accepted)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> "ReadGauge":
        return ReadGauge(Gauge(f"forgelm_{name}", text, registry=self.registry))

    def _by_drafter(self, kind: type[Kind], name: str, text: str, **options: Any) -> Kind:
        return kind(f"forgelm_{name}", text, ["drafter"], registry=self.registry, **options)

    def _by_kind(self, kind: type[Kind], name: str, text: str, *labels: str) -> Kind:
        """Of the models beside the chat model: "embedding" and "rerank"."""
        return kind(f"forgelm_{name}", text, ["kind", *labels], registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"forgelm_{name}", text, registry=self.registry)


class ReadGauge:
    """A gauge that asks for its value when scraped."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge

    def read_from(self, source: Callable[[], float]) -> None:
        """Take every value from `source` from now on."""
        self._gauge.set_function(source)
