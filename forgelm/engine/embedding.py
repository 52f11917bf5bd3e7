"""The side process's one thread: take in texts, pack the next decode, compute it, send its vectors."""

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from forgelm import log
from forgelm.engine.channel import Channel
from forgelm.engine.waiting import Text, Waiting
from forgelm.ipc.embeddings import Embed, Forget, ToEmbedder, Unusable, Vectors
from forgelm.ipc.messages import Drain, Working
from forgelm.llama.batch import Tokens
from forgelm.llama.embedder import Vectors as Array

ANNOUNCE_SECONDS = 1.0
"""Decodes predicted to take longer are announced, so that the watchdog waits for them."""
MEASURED_ROWS = 16
"""Fewer tell more of what every decode costs than of what a row does."""


class Embedder(Protocol):
    """As much of `llama.embedder.Embedder` as is needed here."""

    rows: int
    parallel: int

    def compute(self, texts: Sequence[Tokens]) -> Array:
        """The vectors of `texts`, shape (texts, dimensions), float32."""


class EmbeddingLoop:
    """Runs until drained or until the peer is gone."""

    def __init__(
        self, channel: Channel[ToEmbedder], embedder: Embedder, *, normalize: bool, row_seconds: float
    ) -> None:
        """`normalize` makes vectors as long as 1; `row_seconds` is what a token took so far."""
        self._channel = channel
        self._embedder = embedder
        self._normalize = normalize
        self._row_seconds = row_seconds
        self._waiting = Waiting()
        self._draining = False
        self._names: dict[int, str] = {}
        """What logs call the requests that wait."""
        self._log = log.get("embedder")

    def run(self) -> None:
        """Serve. Returns after `Drain` once nothing waits.

        Raises `PeerGone`, `FrameError` when the peer sends nonsense, or `EmbeddingFailed`.
        """
        while self._waiting or not self._draining:
            self._take_in(0.0 if self._waiting else None)
            if self._waiting:
                self._step()

    def _take_in(self, patience: float | None) -> None:
        for message in self._channel.receive(patience):
            match message:
                case Embed():
                    self._take(message)
                case Forget(request):
                    self._log.debug("request forgotten", request=self._names.pop(request, ""))
                    self._waiting.forget(request)
                case Drain():
                    self._draining = True
                    self._log.debug("draining")

    def _take(self, message: Embed) -> None:
        if message.index == 0:
            self._names[message.request] = message.name
            self._log.debug("request taken", request=message.name)
        self._waiting.add(message)

    def _step(self) -> None:
        texts = self._waiting.take(self._embedder.rows, self._embedder.parallel)
        rows = sum(len(text.tokens) for text in texts)
        if rows * self._row_seconds > ANNOUNCE_SECONDS:
            self._channel.send(Working(rows * self._row_seconds))
        began = time.monotonic()
        vectors = self._embedder.compute([text.tokens for text in texts])
        if rows >= MEASURED_ROWS:
            self._row_seconds = (time.monotonic() - began) / rows
        self._send(texts, normalized(vectors) if self._normalize else vectors)

    def _send(self, texts: Sequence[Text], vectors: Array) -> None:
        sound = [bool(np.isfinite(vector).all()) for vector in vectors]
        for request in {text.request for text, good in zip(texts, sound, strict=True) if not good}:
            self._waiting.forget(request)
            self._log.warning("request failed: numbers that are none", request=self._names.get(request, ""))
            self._channel.send(Unusable(request, "the model gave numbers that are none for a text"))
        places = tuple((text.request, text.index) for text, good in zip(texts, sound, strict=True) if good)
        self._channel.send(Vectors(places, vectors[sound].astype("<f4").tobytes()))
        for request in {text.request for text in texts}:
            if not self._waiting.has(request):
                self._log.debug("request ends", request=self._names.pop(request, ""))


def normalized(vectors: Array) -> Array:
    """`vectors` scaled to the length 1, row by row; zeros stay what they are."""
    lengths: Array = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    lengths[lengths == 0] = 1.0
    return np.divide(vectors, lengths)
