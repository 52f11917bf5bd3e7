"""The server's Prometheus metrics: one object, owned by the API process and written by its event loop alone.

Counters and histograms are written where the event is seen, gauges are read when somebody looks. Names are `forgelm_*`;
counters are never reset, whatever becomes of engines and models. No label's value comes from what a client sends.
"""

import time

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from forgelm.ipc.messages import Step
from forgelm.metrics.instruments import Book
from forgelm.metrics.rates import Rates
from forgelm.metrics.requests import Requests
from forgelm.metrics.server import Downloads, Gpus, Server
from forgelm.metrics.steps import Steps
from forgelm.metrics.vllm import VllmNames

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Everything that `/metrics` shows."""

    def __init__(self, *, vllm_names: bool = False) -> None:
        """`vllm_names`: show the figures that others read under vLLM's names as well."""
        self._book = book = Book("forgelm_")
        self.server = Server(book)
        self.requests = Requests(book)
        self.steps = Steps(book)
        self.gpus = Gpus(book)
        self.downloads = Downloads(book)
        self.recent = Rates()
        self._registry = CollectorRegistry()
        self._registry.register(book)
        if vllm_names:
            self._registry.register(VllmNames(self.requests, self.steps))

    def on_step(self, step: Step, generated: int, now: float) -> None:
        """A step has ended, with `generated` tokens for requests that are open; `now` by the monotonic clock."""
        if generated:
            self.requests.generated.inc(generated)
        self.steps.observe(step)
        prefill = step.stats.prefill_tokens
        if generated or prefill:
            self.recent.add(now, prefill, generated)

    def rates(self) -> tuple[float, float]:
        """Prompt tokens computed and tokens generated per second, over the last seconds; 0 while nothing runs."""
        return self.recent.read(time.monotonic())

    def render(self) -> bytes:
        """The exposition in the plain text format, which all scrapers read and which takes least to make."""
        return generate_latest(self._registry)
