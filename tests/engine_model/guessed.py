"""Servers with and without guesses on one backend, and a drafter that knows what is right."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from forgelm.config import Cache
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Ask, Decode, Plan, Tokens, Trim
from forgelm.engine.stepcost import DraftCost, StepCost
from forgelm.ipc.messages import Delta, Generate, Sampling, Verification
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests.engine_model.drive import NO_CACHE, NO_DRAFTING, Server, request
from tests.llama.drive import words

DEPTH, KEPT = 3, 4
CACHE = Cache(sequences=KEPT)
HYBRID: dict[str, Any] = {"context": 4096, "parallel": 8, "flash_attention": "off"}
"""Sizes of a backend. Flash attention adds up halves, so that logits depend on the order of cells; without it texts can
be compared token for token."""
WARM = Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5, seed=5)

Answers = dict[tuple[int, int], list[int]]
"""(request, choice) → tokens."""
Asked = tuple[int, int, bytes]
"""A choice, a seed and a prompt: what fixes an answer."""


class GuessingServer(Server):
    """A server that notes what became of guesses. `between` is called before each step."""

    def __init__(self, backend: LlamaBackend, *, drafting: Drafting, cache: Cache = NO_CACHE, **options: Any) -> None:
        super().__init__(backend, drafting=drafting, cache=cache, **options)
        self.verified: list[tuple[Verification, ...]] = []
        """Of each step."""
        self.between: Callable[[GuessingServer], None] = lambda _: None

    def _step(self, endings: dict[int, str | None]) -> None:
        self.between(self)
        super()._step(endings)
        self.verified.append(tuple(self.scheduler._guessing.verifications))

    @property
    def verifications(self) -> list[Verification]:
        return [each for step in self.verified for each in step]

    @property
    def drafted(self) -> int:
        return sum(each.drafted for each in self.verifications)

    @property
    def accepted(self) -> int:
        return sum(each.accepted for each in self.verifications)

    def guessed_decodes(self) -> Iterator[Decode]:
        """The decodes with guesses in them."""
        decodes = (decode for plan in self.plans for decode in plan.decodes)
        return (decode for decode in decodes if any(len(span.guesses) for span in decode.spans))


class Pair(NamedTuple):
    """The same requests without and with guesses."""

    off: Answers
    on: Answers
    server: GuessingServer
    """The one with guesses."""


def said(deltas: Sequence[Delta]) -> Answers:
    """All answers."""
    answers: Answers = {}
    for delta in deltas:
        answers.setdefault((delta.id, delta.choice), []).extend(delta.tokens)
    return answers


def wipe_all(backend: LlamaBackend) -> None:
    """Empty all slots, also those of finished requests."""
    slots = backend._context.options.slots
    backend.run(Plan(tuple(Trim(slot) for slot in range(slots))))


def served(server: Server, requests: Sequence[Generate], *, together: bool = True) -> Answers:
    """Serve `requests`, all at once or one after the other, and leave the slots empty."""
    groups = [requests] if together else [[each] for each in requests]
    answers = said([delta for group in groups for delta in server.serve(group)])
    wipe_all(server.backend)
    return answers


def both(
    backend: LlamaBackend,
    requests: Sequence[Generate],
    drafting: Drafting,
    *,
    together: bool = True,
    cache: Cache = NO_CACHE,
) -> Pair:
    """`requests` on `backend` without and with guesses, beginning with empty slots."""
    off = served(Server(backend, cache=cache, drafting=NO_DRAFTING), requests, together=together)
    server = GuessingServer(backend, cache=cache, drafting=drafting)
    return Pair(off, served(server, requests, together=together), server)


def make_rows_cheap(patch: pytest.MonkeyPatch) -> None:
    """Let the controller see steps in which guesses cost next to nothing, however busy the machine is."""
    step, draft = StepCost.observe, DraftCost.observe
    patch.setattr(LlamaBackend, "row_seconds", {rows: 0.03 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 64)})
    patch.setattr(StepCost, "observe", lambda self, shape, _: step(self, shape, 0.03 + 0.0001 * shape.rows))
    patch.setattr(DraftCost, "observe", lambda self, sequences, guesses, _: draft(self, sequences, guesses, 0.001))


def by_head(path: Path, *, adaptive: bool = False) -> Drafting:
    """With the next-token head in `path`, on a hybrid."""
    return Drafting(mtp=str(path), depth=DEPTH, adaptive=adaptive, rollback=DEPTH)


def requests(model: Model, count: int, length: int = 24, **fields: Any) -> list[Generate]:
    """Requests 1, 2, … for answers to random prompts."""
    return [request(number, words(model, number, 20 + 7 * number), length, **fields) for number in range(1, count + 1)]


class Peeking:
    """A `ModelDrafter` that knows the answers, and errs in every way in turn: it makes any number of guesses, of which
    the first so many are right. What else a drafter does the one it stands for goes on doing."""

    def __init__(self, drafter: Any, backend: LlamaBackend) -> None:
        self._drafter = drafter
        self._backend = backend
        self._vocabulary = backend.facts.vocabulary
        self.answers: dict[Asked, list[int]] = {}
        self._turn = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def know(self, requests: Sequence[Generate], answers: Answers) -> None:
        """Take down what is right."""
        for each in requests:
            for choice in range(each.choices):
                self.answers[choice, each.sampling.seed, each.prompt] = answers[each.id, choice]

    def learn(self, asked: Sequence[Generate], cache: Cache = CACHE) -> Answers:
        """Serve `asked` without guesses, and take down the answers."""
        answers = served(Server(self._backend, cache=cache), asked)
        self.know(asked, answers)
        return answers

    def draft(self, asks: Sequence[Ask]) -> tuple[Tokens, ...]:
        self._drafter.draft(asks)
        return tuple(self._guess(ask) for ask in asks)

    def _guess(self, ask: Ask) -> Tokens:
        draw = ask.draw
        prompt = draw.tokens[: len(draw.tokens) - draw.index].tobytes()
        answer = self.answers[draw.choice, draw.sampling.seed, prompt]
        guesses = np.array(answer[draw.index : draw.index + ask.depth], np.int32)
        ways = [(count, right) for count in range(ask.depth, -1, -1) for right in range(count + 1)]
        count, right = ways[self._turn % len(ways)]
        self._turn += 1
        guesses[right:] = (guesses[right:] + 1) % (self._vocabulary - 1)
        return guesses[:count]


@contextmanager
def peeking(backend: LlamaBackend) -> Iterator[Peeking]:
    """Let one who knows the answers stand for `backend`'s drafter."""
    drafter: Any = backend._drafter
    peek = Peeking(drafter, backend)
    backend._drafter = peek
    backend._vault._drafter = peek
    try:
        yield peek
    finally:
        backend._drafter = drafter
        backend._vault._drafter = drafter
        wipe_all(backend)
