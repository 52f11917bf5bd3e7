"""What clients do to a server, and the figures that come of it: scenarios over `bench.sse`.

Every scenario is a fixed amount of work, the same text for both sides of a pair, so that a ratio of times compares
equal work. Prompts are unique from their first letters on: no prefix cache can help. Knows nothing of which server
answers.
"""

import asyncio
import math
import random
import string
import time
from dataclasses import dataclass, field
from statistics import fmean

from bench.sse import Answer, Endpoint, Exchange, complete, open_exchange, parse
from bench.stats import percentile

# Each is one token of the starter's vocabulary after a space; llama.cpp's speed doesn't depend on which.
_WORD_LIST = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education
"""
WORDS = _WORD_LIST.split()

DECODERS = 4
"""Streams that decode while long prompts arrive."""
SETTLED = 8
"""Pieces each decoder must have received before the first long prompt is sent."""

Metrics = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much work a scenario is. Prompt sizes are in words, about one token each in the starter's vocabulary."""

    prompt: int = 128
    answer: int = 64
    one_client_requests: int = 8
    rounds: int = 2
    """Requests of each of eight clients, one after another."""
    long_prompt: int = 1500
    long_prompts: int = 2
    long_answer: int = 8

    @classmethod
    def quick(cls) -> "Sizes":
        """Less of everything: shows that the tool works, measures nothing."""
        return cls(64, 24, 3, 1, 500, 1, 4)


@dataclass
class Prompts:
    """Texts that share no prefix, reproducible from `seed`: both sides of a pair get the same ones."""

    seed: int
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def take(self, words: int) -> str:
        """A new text of about `words` tokens. The letters at its start make it unique."""
        name = "".join(self._random.choices(string.ascii_uppercase, k=8))
        return " ".join([name, *self._random.choices(WORDS, k=words - 4)])


async def clients(endpoint: Endpoint, prompts: Prompts, count: int, rounds: int, sizes: Sizes) -> Metrics:
    """`count` clients, each sending `rounds` requests one after another."""
    queues = [[prompts.take(sizes.prompt) for _ in range(rounds)] for _ in range(count)]

    async def one(queue: list[str]) -> list[Answer]:
        return [await complete(endpoint, prompt, sizes.answer) for prompt in queue]

    began = time.perf_counter()
    answers = [answer for answered in await asyncio.gather(*map(one, queues)) for answer in answered]
    return throughput(answers, time.perf_counter() - began)


def throughput(answers: list[Answer], seconds: float) -> Metrics:
    """Pace and latencies of streams that ended within `seconds`. NaN prompt tokens of a server that doesn't count."""
    counted = all(answer.counted for answer in answers)
    return {
        "output_tok_s": sum(answer.tokens for answer in answers) / seconds,
        **latencies("ttft", [answer.first for answer in answers]),
        **latencies("itl", [gap for answer in answers for gap in answer.gaps()]),
        **latencies("e2e", [answer.ended - answer.sent for answer in answers]),
        "requests": float(len(answers)),
        "tokens": float(sum(answer.tokens for answer in answers)),
        "prompt_tokens": float(sum(answer.prompt_tokens for answer in answers)) if counted else math.nan,
        "cached_tokens": float(sum(answer.cached_tokens for answer in answers)),
        "seconds": seconds,
    }


def latencies(name: str, values: list[float]) -> Metrics:
    """Seconds, as a result line has them; NaN of nothing."""
    figures = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    figures |= {"mean": fmean(values) if values else math.nan, "most": max(values, default=math.nan)}
    return {f"{name}_{which}_s": figure for which, figure in figures.items()}


async def decoders_beside_prompts(endpoint: Endpoint, prompts: Prompts, sizes: Sizes) -> Metrics:
    """`DECODERS` steady streams; once all have settled, long prompts arrive one after another.

    Inter-token latency is that of the steady streams, from the first long prompt's sending to the last one's first
    token; TTFT is that of the long prompts.
    """
    # More than they can say in the time, and together with a long prompt still within the cells of either server.
    streams = [await _Decoder.start(endpoint, prompts.take(16)) for _ in range(DECODERS)]
    try:
        await asyncio.gather(*(stream.settled.wait() for stream in streams))
        began = time.perf_counter()
        longs = []
        for _ in range(sizes.long_prompts):
            longs.append(await complete(endpoint, prompts.take(sizes.long_prompt), sizes.long_answer))
        until = longs[-1].sent + longs[-1].first
    finally:
        for stream in streams:
            stream.exchange.cut()
    gaps = [gap for stream in streams for gap in stream.answer().gaps(began, until)]
    firsts = [answer.first for answer in longs]
    return {
        "decoder_itl_p50_s": percentile(gaps, 50),
        "decoder_itl_p95_s": percentile(gaps, 95),
        "decoder_itl_p99_s": percentile(gaps, 99),
        "decoder_itl_max_s": max(gaps, default=float("nan")),
        "decoder_tok_s": len(gaps) / (until - began),
        "long_ttft_p50_s": percentile(firsts, 50),
        "long_prompt_tokens": percentile([float(answer.prompt_tokens) for answer in longs], 50),
        "seconds": until - began,
    }


@dataclass
class _Decoder:
    """One steady stream that outlasts the measurement."""

    exchange: Exchange
    settled: asyncio.Event

    TOKENS = 1200

    @classmethod
    async def start(cls, endpoint: Endpoint, prompt: str) -> "_Decoder":
        settled = asyncio.Event()

        def on_piece(count: int) -> None:
            if count >= SETTLED:
                settled.set()

        return cls(await open_exchange(endpoint, prompt, cls.TOKENS, on_piece), settled)

    def answer(self) -> Answer:
        return parse(self.exchange.sent, self.exchange.pieces)
