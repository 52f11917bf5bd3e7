"""KV types and files compared on a text: the same rows computed in one context per variant, side by side.

Nothing else differs: variants of one file share its weights, and chunks are the same. A row's logits are compared at
once and forgotten; those of a whole text would be gigabytes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from forgelm.bench.contexts import compute, feed, ids, opened
from forgelm.bench.requests import Quality
from forgelm.bench.stats import LogProbs, Tally, log_softmax
from forgelm.errors import ModelError
from forgelm.ipc.start import EngineConfig
from forgelm.llama.batch import Tokens
from forgelm.llama.context import Context
from forgelm.llama.model import Model

ROWS, ROWS_OF_HYBRIDS = 64, 8
"""Rows compared per decode. A context gives logits of as many rows as it has slots, and a hybrid pays for each slot."""
UNCOUNTED = 8
"""One part in so many of the text goes before the first row that counts: there is little to attend to."""


class Variant(NamedTuple):
    """A loaded model and the context to make of it."""

    model: Model
    config: EngineConfig
    kv_type: str


def compare(model: Model, config: EngineConfig, tokens: tuple[int, ...], kv_types: tuple[str, ...]) -> list[Quality]:
    """The quality of each type against the first one, as `compare_variants`."""
    return compare_variants([Variant(model, config, kv_type) for kv_type in kv_types], tokens)


def compare_variants(variants: Sequence[Variant], tokens: tuple[int, ...]) -> list[Quality]:
    """The quality of each variant against the first one, on the rows after the first eighth of `tokens`.

    Raises `ModelError` when their vocabularies differ, a context can't be made or logits aren't numbers, `MachineError`
    when a decode fails.
    """
    text = ids(tokens)
    if len({variant.model.vocab.size for variant in variants}) > 1:
        raise ModelError("their vocabularies have different sizes")
    rows = min(_rows(variant) for variant in variants)
    tallies = [Tally() for _ in variants]
    with ExitStack() as stack:
        contexts = [
            stack.enter_context(opened(model, config, kv_type=kv_type, n_ctx=len(text), slots=rows))
            for model, config, kv_type in variants
        ]
        first = len(text) // UNCOUNTED
        for context in contexts:
            feed(context, 0, text[:first])
        # The last token has no successor that could have been predicted.
        for begin in range(first, len(text) - 1, rows):
            chunk = text[begin : min(begin + rows, len(text) - 1)]
            _compute_chunk(contexts, chunk)
            for row, token in enumerate(text[begin + 1 : begin + 1 + len(chunk)]):
                distributions = [_distribution(context, row, begin + row) for context in contexts]
                for tally, other in zip(tallies, distributions, strict=True):
                    tally.add(distributions[0], other, int(token))
    return [tally.quality(variant.kv_type) for tally, variant in zip(tallies, variants, strict=True)]


def _rows(variant: Variant) -> int:
    return min(ROWS_OF_HYBRIDS if variant.model.recurrent else ROWS, variant.config.engine.n_ubatch)


def _compute_chunk(contexts: list[Context], chunk: Tokens) -> None:
    for context in contexts:
        for token in chunk:
            context.add(0, token[None], context.length(0) + context.batch.size, logits=True)
        compute(context)


def _distribution(context: Context, row: int, position: int) -> LogProbs:
    logits = context.logits(row)
    if not np.isfinite(logits).all():
        raise ModelError(f"the logits at token {position} aren't numbers: the model's weights are broken")
    return log_softmax(logits)
