"""One llama.cpp context that turns whole texts into vectors, or into the scores of a classifier: several at a time.

Models differ in how much of a text they need at once. Encoders, and decoders that don't look back only, need all of it
in one ubatch: llama.cpp ends the process on more rows than that. Causal ones are fed in parts, from which the pooled
vector of the whole is put together. Nothing is kept in memory from one call to the next.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.errors import ModelError
from forgelm.llama.batch import Batch, Tokens
from forgelm.llama.lib import L, forget_problems, last_problem
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus

POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
"""llama.cpp's numbers."""
_FROM_FILE = -1

LONGEST = 8192
"""Tokens of one text, unless more are asked for."""
LOGITS_BYTES = 256 * 2**20
"""What the logits of the texts that share a decode may take. llama.cpp keeps room for those of every row, and writes
zeros there, even of models that have none: a vocabulary of 250,000 takes 1 MB a row."""
ONE_TEXT_BYTES = 2 * 2**30
"""The same for a single text that can't be cut."""
MOST_ROWS, LEAST_ROWS, TILE = 1024, 64, 32
"""Rows that texts are packed into: every row of a decode is masked against every other, which costs more than fuller
decodes gain. A multiple of TILE."""
_PROBE = 64
"""Rows of the context that is made to see what a model is."""

Vectors = npt.NDArray[np.float32]


class EmbeddingFailed(Exception):
    """llama.cpp could not compute texts that it should have been able to: a bug, or memory that ran out."""


@dataclass(frozen=True)
class EmbedderOptions:
    """As asked for; what the model allows is decided by the `Embedder`."""

    context: int = 0
    """The most tokens of one text; 0 is up to `LONGEST`."""
    parallel: int = 8
    threads: int = 1
    pooling: str = "auto"
    """One of `POOLINGS` but "none", or "auto": what the file says."""


class Embedder:
    """A context for embeddings, and what one decode may hold."""

    def __init__(self, model: Model, options: EmbedderOptions) -> None:
        """Raises `ModelError` for a model that gives no vectors of whole texts, in one line."""
        self._model = model
        self._threads = options.threads
        self._wanted = POOLINGS.get(options.pooling, _FROM_FILE)
        self._encodes = _only_encodes(model)
        self.whole, remembers, self.pooling = self._probe()
        """`whole`: a text must be computed at once."""
        vocabulary = max(1, model.vocab.size)
        self.context = _longest(options.context, model.context_train, vocabulary if self.whole else 0)
        """The most tokens of one text."""
        self.rows = min(MOST_ROWS, max(LEAST_ROWS, LOGITS_BYTES // (4 * vocabulary))) // TILE * TILE
        parallel = min(options.parallel, self.rows)
        size = max(self.context, self.rows) if self.whole else self.rows
        n_ctx = max(self.context, self.rows if remembers else parallel)
        self._handle = self._open(n_ctx=n_ctx, rows=size, texts=parallel)
        self._memory = L.llama_get_memory(self._handle)
        # llama.cpp lowers both to what it thinks right, and aborts the process on more rows than that.
        self._size = min(L.llama_n_batch(self._handle), L.llama_n_ubatch(self._handle))
        self.rows = min(self.rows, self._size)
        """The most rows of several texts."""
        self.parallel = min(parallel, self.rows)
        """The most texts."""
        self._batch = Batch(self._size)
        ranks = self.pooling == "rank"
        self.dimensions: int = (L.llama_model_n_cls_out if ranks else L.llama_model_n_embd_out)(model.handle)
        """Numbers of one vector."""

    def close(self) -> None:
        """Free memory and compute buffers. Harmless when called again."""
        if self._handle:
            L.llama_free(self._handle)
            self._handle = None

    def compute(self, texts: Sequence[Tokens]) -> Vectors:
        """The pooled vectors of up to `parallel` texts, shape (texts, dimensions), float32, as the model gives them.

        Several must not have more than `rows` tokens together, and one alone not more than `context`. Raises
        `ValueError` where that isn't kept, since llama.cpp would end the process, and `EmbeddingFailed`.
        """
        sizes = [len(text) for text in texts]
        if not sizes or len(sizes) > self.parallel or min(sizes) == 0 or max(sizes) > self.context:
            raise ValueError(f"{len(sizes)} texts of {sizes} tokens can't be computed")
        if len(sizes) > 1 and sum(sizes) > self.rows:
            raise ValueError(f"{sum(sizes)} rows don't fit into {self.rows}")
        try:
            if sizes[0] > self._size:
                return self._in_parts(texts[0])
            return self._decode([(text, 0) for text in texts])
        finally:
            if self._memory:
                L.llama_memory_clear(self._memory, False)

    def _in_parts(self, text: Tokens) -> Vectors:
        """A long text of a causal model: what comes later changes nothing of what was computed before."""
        parts = [(text[start : start + self._size], start) for start in range(0, len(text), self._size)]
        vectors = [self._decode([part]) for part in parts]
        if self.pooling == "cls":
            return vectors[0]
        if self.pooling != "mean":
            return vectors[-1]
        whole = np.zeros_like(vectors[0])
        for (rows, _), each in zip(parts, vectors, strict=True):
            whole += each * (len(rows) / len(text))
        return whole

    def _decode(self, texts: Sequence[tuple[Tokens, int]]) -> Vectors:
        """One decode of (tokens, position of the first), a sequence each."""
        for slot, (tokens, start) in enumerate(texts):
            self._batch.add(slot, tokens, start, outputs=len(tokens))
        run = L.llama_encode if self._encodes else L.llama_decode
        code = run(self._handle, self._batch.handle)
        self._batch.clear()
        if DecodeStatus.from_code(code) is not DecodeStatus.OK:
            raise EmbeddingFailed(f"llama.cpp could not compute a batch (code {code}): {last_problem() or 'no reason'}")
        return np.stack([self._vector(slot) for slot in range(len(texts))])

    def _vector(self, slot: int) -> npt.NDArray[np.float32]:
        pointer = L.llama_get_embeddings_seq(self._handle, slot)
        if not pointer:
            raise EmbeddingFailed("llama.cpp has no vector of a text that it computed")
        memory: Any = (ctypes.c_float * self.dimensions).from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(memory, np.float32).copy()

    def _probe(self) -> tuple[bool, bool, str]:
        """Whether texts must be computed whole, whether there is a memory, and how vectors are pooled: only a context
        knows."""
        handle = self._open(n_ctx=_PROBE, rows=_PROBE, texts=1)
        try:
            remembers, causal = bool(L.llama_get_memory(handle)), bool(L.llama_get_causal_attn(handle))
            pooling = next(name for name, number in POOLINGS.items() if number == L.llama_pooling_type(handle))
        finally:
            L.llama_free(handle)
        if pooling == "none":
            raise ModelError(
                f"the file of {self._model.description} doesn't say how its vectors are pooled: say it "
                '(`pooling = "mean"`, "cls" or "last")'
            )
        return self._encodes or not (remembers and causal), remembers, pooling

    def _open(self, *, n_ctx: int, rows: int, texts: int) -> Any:
        forget_problems()
        params = L.llama_context_default_params()
        params.embeddings = True
        params.pooling_type = self._wanted
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = rows
        params.n_seq_max = texts
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = True
        params.no_perf = True
        handle = L.llama_init_from_model(self._model.handle, params)
        if not handle:
            raise ModelError(f"no context of {n_ctx} tokens could be made: {last_problem() or 'out of memory'}")
        return handle


def _longest(asked: int, trained: int, whole_vocabulary: int) -> int:
    """Tokens of one text. Beyond what it was trained for an encoder reads past its table of positions, which ends the
    process."""
    if asked:
        return min(asked, trained)
    longest = min(LONGEST, trained)
    return min(longest, ONE_TEXT_BYTES // (4 * whole_vocabulary)) if whole_vocabulary else longest


def _only_encodes(model: Model) -> bool:
    """Whether it is a T5 encoder, which `llama_decode` can't run. Raises `ModelError` for one with a decoder."""
    encodes = bool(L.llama_model_has_encoder(model.handle))
    if encodes and L.llama_model_has_decoder(model.handle):
        raise ModelError(f"{model.architecture} models have a decoder too: they give no vectors of texts")
    return encodes
