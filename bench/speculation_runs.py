"""One measurement of one server that guesses, or doesn't: how it is started, what it is asked, what comes of it.

Figures of several cases are measured in one process, one after another, so that what its controller has learned in one
is there in the next, as it is where people come and go. Knows nothing of pairs and bars.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import machine, peers, servers
from bench.load import Metrics, Prompts, throughput
from bench.sse import Answer, Endpoint, complete

RECOMMENDED: dict[str, object] = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "presence_penalty": 1.5}
"""Qwen3.5's sampling for general tasks without thinking, by the names that both servers know."""
LLAMA = "llama"
"""Begins the names of llama-server's modes."""
LLAMA_FLAGS: dict[str, tuple[str, ...]] = {
    LLAMA: (),
    "llama ngram-simple": ("--spec-type", "ngram-simple"),
    "llama ngram-mod": ("--spec-type", "ngram-mod"),
    "llama ngram-map-k": ("--spec-type", "ngram-map-k"),
    "llama mtp": ("--spec-type", "draft-mtp"),
}
"""As they come: what each looks for and how much it guesses is llama.cpp's own choice."""
FIXED = (3, 7)
"""Depths of the modes that always guess so many."""


@dataclass(frozen=True)
class Work:
    """What all servers are told, and where things are."""

    settings: servers.Settings
    draft: Path
    """The draft model's file."""
    built: peers.Peers
    directory: Path
    """For profiles."""
    tokens: int = 128
    """Of an answer, at most: `Case.tokens` may say less."""
    rounds: int = 4
    """Requests of each client one after another, at most."""


@dataclass(frozen=True)
class Case:
    """What clients ask."""

    name: str
    clients: int
    text: Callable[[int], str]
    """Seed → prompt."""
    sampled: bool = False
    """At Qwen3.5's recommended sampling instead of temperature 0."""
    rounds: int = 2
    tokens: int = 128


def kind(mode: str, work: Work) -> servers.Kind:
    """How the server of `mode` is started. Raises `KeyError` for a name there is none of."""
    if mode.startswith(LLAMA):
        flags = {**LLAMA_FLAGS, **{f"llama draft {depth}": _llama_draft(work.draft, depth) for depth in FIXED}}
        return servers.llama_server(work.settings, work.built.server, "unique", flags[mode])
    model = json.dumps(str(work.draft))
    ours = {
        "off": '"off"',
        "auto": '"auto"',
        "ngram": '{ drafter = "ngram" }',
        "mtp": '{ drafter = "mtp" }',
        "draft": f'{{ drafter = "draft", model = {model} }}',
        **{
            f"draft {depth}": f'{{ drafter = "draft", model = {model}, depth = {depth}, adaptive = false }}'
            for depth in FIXED
        },
    }
    return servers.forgelm_speculating(work.settings, ours[mode], work.directory)


def _llama_draft(draft: Path, depth: int) -> tuple[str, ...]:
    return ("--model-draft", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(depth))


def measure(mode: str, cases: Sequence[Case], work: Work, seed: int) -> Metrics:
    """Start a server, put the cases to it one after another, stop it: figures named `case: figure`.

    Raises `ServerError`, or `AnswerError`.
    """
    before = machine.vram_mb()
    with servers.running(kind(mode, work)) as server:
        asyncio.run(complete(server.endpoint, Prompts(seed).take(32), 8))
        figures: Metrics = {}
        for place, case in enumerate(cases):
            # The same texts and random numbers for all modes; new ones for every case.
            found = measure_case(server, case, work, seed * 100 + place)
            figures |= {f"{case.name}: {name}": value for name, value in found.items()}
        memory = server.memory_mb()
        return {**figures, **memory, "vram_mb": machine.vram_mb() - before}


def measure_case(server: servers.Server, case: Case, work: Work, seed: int) -> Metrics:
    """One case's figures."""
    rounds, tokens = min(case.rounds, work.rounds), min(case.tokens, work.tokens)
    texts = [case.text(seed * 1000 + place) for place in range(case.clients * rounds)]
    queues = [texts[client :: case.clients] for client in range(case.clients)]
    endpoint = server.endpoint
    if case.sampled:
        endpoint = replace(endpoint, extra={**endpoint.extra, **RECOMMENDED, "seed": seed % (1 << 31)})
    cpu, began = machine.cpu_seconds(server.engine), time.perf_counter()
    answers = asyncio.run(ask(endpoint, queues, tokens))
    seconds = time.perf_counter() - began
    cpu = machine.cpu_seconds(server.engine) - cpu
    total = sum(answer.tokens for answer in answers)
    return {**throughput(answers, seconds), **guesses(answers), "cpu_s_per_token": cpu / total}


async def ask(endpoint: Endpoint, queues: Sequence[Sequence[str]], tokens: int) -> list[Answer]:
    """One client per queue, which sends its prompts one after another."""

    async def client(queue: Sequence[str]) -> list[Answer]:
        return [await complete(endpoint, prompt, tokens) for prompt in queue]

    return [answer for answers in await asyncio.gather(*map(client, queues)) for answer in answers]


def guesses(answers: Sequence[Answer]) -> Metrics:
    """What became of guesses, and the pace they are for. NaN for what a server doesn't say or didn't do.

    A step gives an answer one token and the guesses that were right, so tokens and accepted guesses tell the number of
    steps. An answer's first token is its prompt's, and belongs to neither.
    """
    decoded = sum(answer.tokens - 1 for answer in answers) or math.nan
    drafted = sum(answer.drafts.drafted for answer in answers)
    accepted = sum(answer.drafts.accepted for answer in answers)
    verifications = sum(answer.drafts.verifications for answer in answers)
    decoding = sum(answer.ended - answer.sent - answer.first for answer in answers)
    return {
        "decode_tok_s": decoded / decoding if decoding else math.nan,
        "steps_per_token": (decoded - accepted) / decoded,
        "acceptance": accepted / drafted if drafted else math.nan,
        "tokens_per_verification": 1 + accepted / verifications if verifications else math.nan,
        "drafted_per_token": drafted / decoded,
        "drafting_s_per_token": sum(answer.drafts.seconds for answer in answers) / decoded,
    }
