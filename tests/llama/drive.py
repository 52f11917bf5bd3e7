"""Short ways to drive a `Context`, and what "the same" and "wrong" mean for logits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from forgelm.llama.batch import Tokens
from forgelm.llama.context import Context, ContextOptions, Logits, MemoryMisuse
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.raw import raw

NOISE = 0.1
"""Random models: equal computations in other batch shapes and cells differed by up to 0.031, on logits up to 4.2."""
WRONG = 0.25
"""Random models: a corrupted state showed at 0.29 … 3.9."""
REAL_NOISE = {"llama": 1.0, "gemma3": 1.5}
"""Real models on real text: 0.63 (by the place of the cells alone) and 0.85, on logits up to 22; one wrong or lost
token showed at 4.8 … 9.5."""

REAL_TIE = {"llama": 1.2, "gemma3": 1.5}
"""Two candidates closer than this may change places: 0.32 was seen (llama), and more than 0.6 on another CPU, whose
kernels differ; each of the two may be off by `REAL_NOISE`. Random models: `NOISE`, none was seen."""

TEXT = """The ship left the harbour early in the morning, and nobody in the town knew where it would go. The captain had
not said a word since the letter came. Some thought that he was looking for his brother, who had been lost in the north
many years before; others said that there was gold in it, as there always is. On the third day the wind changed."""


def options(**changes: Any) -> ContextOptions:
    sizes = {"n_ctx": 2048, "n_batch": 1024, "n_ubatch": 512, "slots": 8, "threads": 1}
    return ContextOptions(**{**sizes, "kv_type": "f16", "flash_attention": "auto", **changes})


@contextmanager
def opened(model: Model, **changes: Any) -> Iterator[Context]:
    """A context for as long as the block lasts."""
    context = Context(model, options(**changes))
    try:
        yield context
    finally:
        context.close()


def ids(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, np.int32)


def is_random(model: Model) -> bool:
    return model.size < 50_000_000


def noise(model: Model) -> float:
    """How far apart the logits of equal computations may lie."""
    return NOISE if is_random(model) else REAL_NOISE[model.architecture]


def words(model: Model, seed: int, count: int) -> list[int]:
    """Tokens to compute: any for a random model; real text for a real one, which is noisy on gibberish."""
    if is_random(model):
        return [int(token) for token in np.random.default_rng(seed).integers(100, model.vocab.size - 1, count)]
    text = model.vocab.tokenize(TEXT, add_special=False, parse_special=False).tolist()
    start = seed * 11 % len(text)
    return (text[start:] + text * (1 + count // len(text)))[:count]


def feed(context: Context, slot: int, tokens: Sequence[int]) -> Logits:
    """Append `tokens` to `slot`, which must succeed; a copy of the last one's logits."""
    row = context.add(slot, ids(tokens), context.length(slot), logits=True)
    assert context.decode() is DecodeStatus.OK
    return context.logits(row).copy()


def feed_all(context: Context, tokens: dict[int, Sequence[int]]) -> DecodeStatus:
    """One decode of rows of several slots."""
    for slot, part in tokens.items():
        context.add(slot, ids(part), context.length(slot), logits=True)
    return context.decode()


def assert_same(logits: Logits, reference: Logits, limit: float = NOISE) -> None:
    assert np.abs(logits - reference).max() < limit


def assert_wrong(logits: Logits, reference: Logits) -> None:
    assert np.abs(logits - reference).max() > WRONG


def refused(match: str) -> Any:
    return pytest.raises(MemoryMisuse, match=match)


def assert_greedy(model: Model, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """`answer` is what one sequence alone says to `prompt`, step by step; returns how many tokens were ties.

    Where a token isn't the reference's own, the two must be closer in the reference's row than a tie: then the shape
    of a batch decides between them. The reference goes on from the token that was taken.
    """
    return _ties(model, tuple(prompt), tuple(answer))


@lru_cache(maxsize=1024)
def _ties(model: Model, prompt: tuple[int, ...], answer: tuple[int, ...]) -> int:
    """The same, computed once however often an answer comes about, and in however many ways."""
    ties, tie = 0, NOISE if is_random(model) else REAL_TIE[model.architecture]
    with raw(model.handle) as context:
        logits = context.run(0, prompt)
        for at, token in enumerate(answer):
            if token != logits.argmax():
                assert logits.max() - logits[token] < tie, f"token {at} of the answer to {len(prompt)} tokens"
                ties += 1
            if at + 1 < len(answer):
                logits = context.run(0, [token], len(prompt) + at)
    return ties


def greedy_on(context: Context, slot: int, logits: Logits, count: int) -> list[int]:
    """Go on greedily from `logits`."""
    answer = [int(logits.argmax())]
    while len(answer) < count:
        answer.append(int(feed(context, slot, answer[-1:]).argmax()))
    return answer
