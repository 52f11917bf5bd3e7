"""What clients do to a server whose prompts begin alike, and the figures that come of it.

Two workloads: many short questions under one system prompt, and conversations that send their whole history each turn.
All chats, as clients of such servers are, so that both servers see where messages begin and end. Knows nothing of which
server answers.

What could have been reused at best is counted in the server's own tokens: of the shared prompts all but one whole
prompt; of a conversation each turn's prompt, once the next turn sends it again.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from bench.load import Metrics, throughput
from bench.sse import Answer, Endpoint, Message, complete
from bench.texts import Texts


@dataclass(frozen=True)
class PrefixSizes:
    """How much work a workload is. Lengths are in tokens."""

    system: int = 375
    requests: int = 16
    at_once: int = 8
    short_answer: int = 32
    conversations: int = 4
    turns: int = 4
    opening: int = 200
    """Of the text that a conversation is about; what is said afterwards has 20 to 40."""
    answer: int = 48
    restart_prompt: int = 2000

    @classmethod
    def quick(cls) -> "PrefixSizes":
        """Less of everything: shows that the tool works, measures nothing."""
        return cls(80, 4, 2, 6, 2, 2, 40, 6, 150)


def said(role: str, content: str) -> Message:
    """One message of a chat."""
    return {"role": role, "content": content}


# --- one system prompt, many questions -----------------------------------------------------------------------


async def shared(endpoint: Endpoint, texts: Texts, sizes: PrefixSizes) -> Metrics:
    """`at_once` clients share `requests` questions under one system prompt; each sends its next when it has its answer.

    Nothing has been sent before: the first ones arrive together at a server that knows no part of the prompt.
    """
    instructions = said("system", texts.instructions(sizes.system))
    waiting = iter([[instructions, said("user", texts.question())] for _ in range(sizes.requests)])

    async def client() -> list[Answer]:
        return [await complete(endpoint, chat, sizes.short_answer) for chat in waiting]

    began = time.perf_counter()
    answers = [answer for mine in await asyncio.gather(*(client() for _ in range(sizes.at_once))) for answer in mine]
    figures = _figures(answers, time.perf_counter() - began)
    reusable = figures["prompt_tokens"] * (1 - 1 / len(answers))
    return {**figures, "reused_share": figures["cached_tokens"] / reusable}


# --- conversations -------------------------------------------------------------------------------------------


async def turns(endpoint: Endpoint, texts: Texts, sizes: PrefixSizes) -> Metrics:
    """Conversations at the same time, each about a text of its own. A turn sends all that was said, with the answers
    as they were received, and a new remark."""
    scripts = [list(_script(texts, sizes)) for _ in range(sizes.conversations)]
    began = time.perf_counter()
    talks = await asyncio.gather(*(converse(endpoint, script, sizes.answer) for script in scripts))
    figures = _figures([answer for talk in talks for answer in talk], time.perf_counter() - began)
    later = [answer for talk in talks for answer in talk[1:]]
    sent_before = sum(answer.prompt_tokens for talk in talks for answer in talk[:-1])
    return {
        **figures,
        "later_ttft_mean_s": mean(answer.first for answer in later),
        "reused_share": sum(map(reused, talks)) / sent_before if sent_before else math.nan,
    }


def _script(texts: Texts, sizes: PrefixSizes) -> Iterator[str]:
    """What the user of one conversation says."""
    yield texts.report(sizes.opening)
    for _ in range(sizes.turns - 1):
        yield texts.remark()


async def converse(endpoint: Endpoint, script: list[str], tokens: int) -> list[Answer]:
    """One conversation; answers of `tokens` tokens each."""
    history: list[Message] = []
    answers = []
    for remark in script:
        history.append(said("user", remark))
        answers.append(await complete(endpoint, history, tokens))
        history.append(said("assistant", answers[-1].text))
    return answers


def reused(talk: list[Answer]) -> int:
    """Prompt tokens of a conversation that had been sent before and weren't computed again.

    What was cached beyond the former prompt, its answer, doesn't count: it could hide prompt tokens that were not.
    """
    return sum(min(now.cached_tokens, before.prompt_tokens) for before, now in itertools.pairwise(talk))


def _figures(answers: list[Answer], seconds: float) -> Metrics:
    return {**throughput(answers, seconds), "without_text": float(sum(not answer.arrivals for answer in answers))}
