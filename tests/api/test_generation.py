"""A request's end, seen from the generation: what is remembered, and when."""

from collections.abc import Sequence
from typing import Any

import pytest

from forgelm.api.engine_client import IDLE, EngineClient
from forgelm.api.generate import Generation
from forgelm.api.mailbox import Job
from forgelm.api.prepare import Prepared
from forgelm.config import Limits
from forgelm.ipc.messages import Delta, Sampling, Step
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase, Status
from forgelm.text.output import Content

PIECES = [b"Hel", b"lo", b" wor", b"ld", b"<end>"]


class Engine:
    """In place of the supervisor: always ready, and keeps what it is sent."""

    status = Status(Phase.READY)

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Continuation:
    """In place of the real one: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[list[str], list[int], bool]] = []

    def remember(self, said: Sequence[str], tokens: Sequence[int], *, unsure: bool = False) -> None:
        self.told.append((list(said), list(tokens), unsure))


class Run:
    """One request whose tokens the test delivers."""

    def __init__(self, *stops: str, min_tokens: int = 0) -> None:
        self.client = EngineClient(Limits(), Metrics())
        self.client.attach(Engine(), "model", "profile")  # type: ignore[arg-type]
        self.continuation = Continuation()
        job = Job(b"\0\0\0\0", 10, Sampling(), (4,), min_tokens=min_tokens)
        prepared = Prepared(job, True, stops, True, False, None, self.continuation)  # type: ignore[arg-type]
        self.generation = Generation(prepared, self.client, PIECES)

    def deliver(self, *tokens: int, finish: Any = None, cached: int = 0) -> None:
        delta = Delta(self.generation.ticket.id, tokens, finish, cached=cached)
        self.client.on_step(Step((delta,), IDLE))

    async def next(self) -> tuple[str, str | None]:
        [said] = await self.generation.next()
        assert all(isinstance(event, Content) for event in said.events)
        return "".join(event.text for event in said.events), said.finish

    @property
    def told(self) -> list[tuple[list[str], list[int], bool]]:
        return self.continuation.told


async def test_remembered_before_the_client_hears_of_the_end() -> None:
    """Else its next turn could come before that."""
    run = Run()
    run.deliver(0, 1)
    assert await run.next() == ("Hello", None)
    assert run.told == []
    run.deliver(2, 4, finish="stop")
    assert await run.next() == (" wor", "stop")
    assert run.told == [(["Hello", " wor"], [0, 1, 2], False)]
    run.generation.abort()
    assert len(run.told) == 1, "once"


async def test_ended_by_its_length() -> None:
    run = Run()
    run.deliver(0, 1, finish="length")
    assert await run.next() == ("Hello", "length")
    assert run.told == [(["Hello"], [0, 1], False)]


async def test_ended_by_a_stop_string() -> None:
    """All tokens that were drawn are told, and only the text that was sent."""
    run = Run("o w")
    run.deliver(0, 1)
    assert await run.next() == ("Hell", None)
    run.deliver(2, 3)
    assert await run.next() == ("", "stop")
    assert run.told == [(["Hell", ""], [0, 1, 2, 3], False)]


async def test_a_client_that_left() -> None:
    run = Run()
    run.deliver(0)
    await run.generation.next()
    run.generation.abort()
    run.generation.abort()
    assert run.told == [(["Hel"], [0], True)]


@pytest.mark.parametrize(("first", "last"), [(7, 0), (7, 7), (0, 7), (0, 0)])
async def test_cached_tokens_are_those_of_any_delta(first: int, last: int) -> None:
    run = Run()
    run.deliver(0, cached=first)
    assert run.generation.ticket.cached == first
    run.deliver(1, finish="length", cached=last)
    assert run.generation.ticket.cached == max(first, last)


@pytest.mark.parametrize("steps", [[(0, 1, 2, 3)], [(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)], [(0,), (1, 2, 3)]])
@pytest.mark.parametrize(
    ("least", "stop", "text"), [(0, "lo", "Hel"), (2, "lo", "Hello world"), (1, "lo", "Hel"), (2, "wo", "Hello ")]
)
async def test_stop_strings_are_looked_for_behind_the_least_tokens(
    steps: list[tuple[int, ...]], least: int, stop: str, text: str
) -> None:
    """Tokens that came while the reader was busy were let through together with those that must come."""
    run = Run(stop, min_tokens=least)
    said = ""
    for tokens in steps:
        run.deliver(*tokens, finish="length" if tokens[-1] == 3 else None)
        piece, finish = await run.next()
        said += piece
        if finish:
            break
    assert (said, finish) == (text, "length" if text == "Hello world" else "stop")
