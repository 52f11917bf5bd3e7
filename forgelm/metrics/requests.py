"""What requests tell: tokens, latencies, how they ended. Written where it happens in the API process."""

from typing import Literal

from forgelm.errors import ClientLeft, RequestError
from forgelm.ipc.messages import FinishReason, Timings
from forgelm.metrics.buckets import ITL, LENGTHS, REQUEST, TTFT
from forgelm.metrics.instruments import Book, Count

Cause = Literal[
    "client_left", "shutdown", "queue_timeout", "model_change", "engine_down", "engine_error", "internal_error"
]
"""Why an answer was given up before it was whole."""
ANSWERED = ("stop", "length")
"""How an answer that is whole ends."""
MODEL = ("model", "profile")
"""Ids of models that are installed here, and names of profiles: nothing that clients make up."""


class Requests:
    """Figures of requests to the chat model."""

    def __init__(self, book: Book) -> None:
        self.waiting = book.gauge(
            "requests_waiting", "Requests in the queue, and those that wait for their model to be loaded"
        )
        self.open = book.gauge("requests_open", "Requests accepted and not ended yet")
        self.ended = book.counter("requests", "Requests ended, by finish reason", "reason", *MODEL)
        self.aborts = book.counter("aborts", "Requests given up before their answer was whole, by cause", "reason")
        self.errors = book.counter("errors", "Requests refused or failed, by code", "code")
        self.prompt_tokens = book.counter("prompt_tokens", "Prompt tokens of accepted requests", *MODEL)
        self.cached_tokens = book.counter(
            "cached_tokens", "Prompt tokens taken from memory instead of computed", *MODEL
        )
        self.generated_tokens = book.counter("generated_tokens", "Tokens generated", *MODEL)
        self.ttft = book.histogram("time_to_first_token_seconds", "From arrival to the first token of a choice", TTFT)
        self.itl = book.histogram("inter_token_seconds", "Between consecutive tokens of one choice", ITL)
        self.seconds = book.histogram("request_seconds", "From arrival to the end of a whole answer", REQUEST)
        self.queue = book.histogram(
            "request_queue_seconds",
            "Before anything was computed, of whole answers: preparing, a model that had to be loaded, the queue",
            REQUEST,
        )
        self.prefill = book.histogram(
            "request_prefill_seconds", "From leaving the queue to the first token, of whole answers", REQUEST
        )
        self.decode = book.histogram(
            "request_decode_seconds", "From the first token to the last, of whole answers", REQUEST
        )
        self.prompt_length = book.histogram(
            "request_prompt_tokens", "Prompt tokens of a request, of whole answers", LENGTHS
        )
        self.answer_length = book.histogram(
            "request_generation_tokens", "Tokens generated for a request, of whole answers", LENGTHS
        )
        self.observe_ttft = self.ttft.labels().observe
        self.observe_gap = self.itl.labels().observe
        # Counts nobody sees: there is no model yet.
        self.prompt, self.cached, self.generated = Count(), Count(), Count()
        self._model = "", ""

    def serve(self, model: str, profile: str) -> None:
        """Count for this model from now on."""
        self._model = model, profile
        self.prompt = self.prompt_tokens.labels(*self._model)
        self.cached = self.cached_tokens.labels(*self._model)
        self.generated = self.generated_tokens.labels(*self._model)

    @property
    def model(self) -> str:
        """Id of the model that is served, or was last."""
        return self._model[0]

    def end(self, reason: FinishReason, cause: Cause | None, code: str) -> None:
        """A request has ended: `cause` says why it was given up, `code` what its client was told, "" for no error."""
        self.ended.labels(reason, *self._model).inc()
        if cause is not None:
            self.aborts.labels(cause).inc()
        if code:
            self.errors.labels(code).inc()

    def refuse(self, error: RequestError) -> None:
        """A request ends with `error` before it was accepted, or by a bug of ours."""
        if isinstance(error, ClientLeft):
            self.aborts.labels("client_left").inc()
        else:
            self.errors.labels(error.code or error.type).inc()

    def answered(self, seconds: float, times: Timings, prompt: int, generated: int) -> None:
        """An answer is whole, `seconds` after its request came; lengths in tokens."""
        self.seconds.labels().observe(seconds)
        # Not the engine's figure: while a step runs requests lie in its socket, and it knows nothing of them.
        self.queue.labels().observe(max(0.0, seconds - times.prefill - times.decode))
        self.prefill.labels().observe(max(0.0, times.prefill))
        self.decode.labels().observe(max(0.0, times.decode))
        self.prompt_length.labels().observe(prompt)
        self.answer_length.labels().observe(generated)
