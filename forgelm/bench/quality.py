"""KV types compared on a text: the same rows computed in one context per type, side by side.

Nothing but the context differs: the weights are shared, and chunks are the same. A row's logits are compared at once
and forgotten; those of a whole text would be gigabytes.
"""

from contextlib import ExitStack

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


def compare(model: Model, config: EngineConfig, tokens: tuple[int, ...], kv_types: tuple[str, ...]) -> list[Quality]:
    """The quality of each type against the first one, on the rows after the first eighth of `tokens`.

    Raises `ModelError` when a context can't be made or logits aren't numbers, `MachineError` when a decode fails.
    """
    text = ids(tokens)
    rows = min(ROWS_OF_HYBRIDS if model.recurrent else ROWS, config.engine.n_ubatch)
    tallies = [Tally() for _ in kv_types]
    with ExitStack() as stack:
        contexts = [
            stack.enter_context(opened(model, config, kv_type=kv_type, n_ctx=len(text), slots=rows))
            for kv_type in kv_types
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
    return [tally.quality(kv_type) for tally, kv_type in zip(tallies, kv_types, strict=True)]


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
