"""A scheduler and a backend in one process, and answers judged against llama.cpp alone."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.config import Cache, Engine
from forgelm.engine.chance import MOST_RACING, token_uniforms
from forgelm.engine.disk import DiskTier
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.main import make_scheduler
from forgelm.engine.plan import Plan, Trim
from forgelm.ipc.messages import Delta, Generate, Sampling
from forgelm.ipc.start import Drafting, EngineConfig
from forgelm.llama.model import Model
from tests.llama.raw import raw

GREEDY = Sampling(temperature=0.0)


NO_CACHE = Cache(prefix_cache=False)
NO_DRAFTING = Drafting()


@contextmanager
def backend(
    path: Path,
    cache: Cache = NO_CACHE,
    *,
    disk: DiskTier | None = None,
    drafting: Drafting = NO_DRAFTING,
    **changes: Any,
) -> Iterator[LlamaBackend]:
    """A backend on the CPU for as long as the block lasts. One thread: the machine may be busy."""
    sizes = {"device": "cpu", "context": 2048, "parallel": 8, "n_batch": 256, "n_ubatch": 256}
    engine = Engine(**{**sizes, **changes})
    loaded = LlamaBackend(path, engine, 1, lambda _: True, cache=cache, disk=disk, drafting=drafting)
    try:
        yield loaded
    finally:
        loaded.close()


def request(number: int, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY, **fields: Any) -> Generate:
    return Generate(number, np.array(prompt, np.int32).tobytes(), count, sampling, **fields)


class Server:
    """The engine's loop without a process around it. Start with empty slots: `wipe` leaves them so."""

    def __init__(
        self,
        backend: LlamaBackend,
        *,
        max_chunk: int = 256,
        cache: Cache = NO_CACHE,
        host_bytes: int = 2**30,
        drafting: Drafting = NO_DRAFTING,
        target_itl_ms: float = 0.0,
    ) -> None:
        """`target_itl_ms`: with one that no step takes, the clock doesn't say how prompts are cut."""
        facts = backend.facts
        engine = Engine(n_ubatch=max_chunk, parallel=facts.slots, target_itl_ms=target_itl_ms)
        config = EngineConfig("", engine, 1, cache=cache, host_bytes=host_bytes, drafting=drafting)
        self.backend = backend
        self.scheduler = make_scheduler(
            config,
            facts,
            split_batches=backend.splits_batches,
            archived=backend.archived(),
            open_grammar=backend.open_grammar,
            whole_slots=backend.whole_slots,
            draft_rows=backend.draft_rows if drafting.on else 0,
            guessed_seconds=backend.row_seconds,
        )
        self.plans: list[Plan] = []
        self.preemptions = 0
        self.cached: dict[int, int] = {}
        """Prompt tokens that each request took from memory."""
        self._answers: dict[int, list[int]] = {}
        self.deltas: list[Delta] = []
        """All that came out."""

    def answers(self, requests: Sequence[Generate]) -> dict[int, list[int]]:
        """Serve all at once; the tokens of each by its id. Every request must end as it asked to."""
        scheduler = self.scheduler
        for each in requests:
            scheduler.add(each, time.monotonic())
            self._answers[each.id] = []
        endings: dict[int, str | None] = {}
        while scheduler.has_work:
            self._step(endings)
        assert endings == dict.fromkeys((each.id for each in requests), "length")
        return {each.id: self._answers.pop(each.id) for each in requests}

    def serve(self, requests: Sequence[Generate]) -> list[Delta]:
        """Serve all at once, however they end; all that came out, in order."""
        before = len(self.deltas)
        for each in requests:
            self.scheduler.add(each, time.monotonic())
            self._answers[each.id] = []
        while self.scheduler.has_work:
            self._step({})
        return self.deltas[before:]

    def _step(self, endings: dict[int, str | None]) -> None:
        asks = self.scheduler.ask(time.monotonic())
        plan = self.scheduler.plan(time.monotonic(), self.backend.draft(asks))
        outcome = self.backend.run(plan)
        self.plans.append(plan)
        deltas = self.scheduler.apply(plan, outcome, time.monotonic())
        self.deltas += deltas
        for delta in deltas:
            self._answers[delta.id] += delta.tokens
            if delta.finish:
                self.cached[delta.id] = delta.cached
                endings[delta.id] = delta.finish
        self.preemptions = self.scheduler.stats(plan, outcome).preemptions

    def archive(self) -> None:
        """Write everything that is finished to disk, as an engine does that stops."""
        while self.scheduler.archive(time.monotonic(), at_once=True):
            self._step({})

    def operations(self, kind: type) -> list[Any]:
        """All operations of a kind so far."""
        return [operation for plan in self.plans for operation in plan.operations if isinstance(operation, kind)]


def wipe(backend: LlamaBackend, slots: int) -> None:
    """Empty all slots, and forget all saved states."""
    backend.run(Plan(tuple(Trim(slot) for slot in range(slots))))


def reference_rows(model: Model, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
    """The row that each token of `answer` was drawn from, by one sequence alone in a bare context: the prompt in one
    decode, then token by token."""
    with raw(model.handle) as context:
        logits = context.run(0, prompt)
        yield logits
        for at, token in enumerate(answer[:-1]):
            logits = context.run(0, [token], len(prompt) + at)
            yield logits


def assert_drawn(model: Model, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling, slack: float) -> None:
    """Each token wins its race in the reference's distribution, or would with a logit higher by `slack`: what the noise
    between batch shapes moves. Knows temperature, presence penalty and top-k, which must be there."""
    assert 0 < sampling.top_k <= MOST_RACING
    taken: set[int] = set()
    for index, (row, token) in enumerate(zip(reference_rows(model, prompt, answer), answer, strict=True)):
        scores = row.astype(np.float64)
        scores[list(taken)] -= sampling.presence_penalty
        lowest = np.sort(scores)[-sampling.top_k]
        times = -np.log(token_uniforms(sampling.seed, 0, index, np.arange(len(row))))
        racing = scores - sampling.temperature * np.log(times)
        short = racing[scores > lowest + slack].max(initial=-np.inf) - racing[token]
        assert short <= slack, f"token {index}: {short} short of the winner"
        assert scores[token] >= lowest - slack
        taken.add(token)


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers have in common before they part."""
    return next((at for at, pair in enumerate(zip(one, other, strict=True)) if len(set(pair)) == 2), len(one))


def numbered(prompts: Sequence[Sequence[int]], count: int, **fields: Any) -> list[Generate]:
    return [request(number, prompt, count, **fields) for number, prompt in zip(itertools.count(1), prompts)]
