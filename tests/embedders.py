"""The embedding and rerank models that tests load: which there are, and how each is written."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gguf

from tests.make_embedder import write_bert, write_qwen3

_KIND = gguf.PoolingType


class Embedders(NamedTuple):
    """Paths."""

    bert: Path
    """An encoder, pooled by its first token."""
    silent: Path
    """The same, and its file doesn't say how it is pooled."""
    ranker: Path
    """The same with a classifier: a cross-encoder."""
    labelled: Path
    """The same with a classifier of three labels: no rerank model."""
    qwen: Path
    """A causal decoder, pooled by its last token."""
    bidirectional: Path
    """The same, and every token sees every other; pooled by the mean."""
    qwen_ranker: Path
    """The same, causal, with the answers yes and no."""


def writers(vocabulary: Path) -> dict[str, Callable[[Path], None]]:
    """How to write each; those of Qwen3's architecture have the tokenizer of the GGUF at `vocabulary`."""
    return {
        "bert": partial(write_bert, pooling=_KIND.CLS),
        "silent": partial(write_bert, pooling=None),
        "ranker": partial(write_bert, pooling=_KIND.RANK, labels=1),
        "labelled": partial(write_bert, pooling=_KIND.RANK, labels=3),
        "qwen": partial(write_qwen3, vocabulary=vocabulary, pooling=_KIND.LAST),
        "bidirectional": partial(write_qwen3, vocabulary=vocabulary, pooling=_KIND.MEAN, causal=False),
        "qwen_ranker": partial(write_qwen3, vocabulary=vocabulary, pooling=_KIND.RANK, labels=("yes", "no")),
    }
