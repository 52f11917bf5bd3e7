"""Several rows on one server, one after another, and the result of them all."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from forgelm.bench.ceiling import measure_ceiling
from forgelm.bench.client import Endpoint
from forgelm.bench.driving import drive
from forgelm.bench.identity import HashProgress, Identity, identify
from forgelm.bench.machine import make_result
from forgelm.bench.result import Ceiling, Result, Row
from forgelm.bench.rows import Planned
from forgelm.bench.terms import Terms, learn
from forgelm.bench.watching import Watch, watch_server
from forgelm.errors import ForgeError
from forgelm.machine import read_gpus

ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Hooks:
    """Whom to tell how far it is."""

    row: Callable[[Planned, int], Callable[[int, int], None]]
    """A row begins, with so many to come after it; returns who is told of its requests."""
    hashing: HashProgress
    doing: Callable[[str], None]
    """Something else begins that takes seconds."""


@dataclass(frozen=True)
class Target:
    """Whom to measure."""

    endpoint: Endpoint
    file: Path | None = None
    """The model's file, where the user names it."""
    watch: Watch | None = None
    """Of a server that was started here; else it is looked for."""


async def _rows(
    target: Target, terms: Terms, planned: Sequence[Planned], watch: Watch | None, hooks: Hooks
) -> tuple[list[Row], bool]:
    """The rows, and whether an interruption (or SIGTERM) ended them early; a second one isn't waited for."""
    loop, stop, rows = asyncio.get_running_loop(), asyncio.Event(), list[Row]()

    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def interrupt() -> None:
        restore()
        stop.set()

    for number in ENDING:
        loop.add_signal_handler(number, interrupt)
    try:
        for index, each in enumerate(planned):
            progress = hooks.row(each, len(planned) - index - 1)
            rows.append(
                await drive(
                    target.endpoint, each.workload, each.load, watch=watch, progress=progress, terms=terms, stop=stop
                )
            )
            if stop.is_set():
                break
    finally:
        restore()
    return rows, stop.is_set()


@dataclass(frozen=True)
class Measured:
    """What came of it."""

    result: Result
    interrupted: bool


def measure(
    bench: str,
    target: Target,
    plan: Callable[[Terms], Sequence[Planned]],
    hooks: Hooks,
    *,
    ceiling: bool = True,
    notes: Sequence[str] = (),
) -> Measured:
    """Learn the server's terms, find out who it is, measure what `plan` makes of the terms.

    Raises `ForgeError` when the server can't be reached or refuses the plainest request.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        terms = runner.run(learn(target.endpoint))
        identity = identify(target.endpoint, terms, hooks.hashing, target.file)
        # Before the load, while the server does nothing.
        limits, unknown = _ceiling(identity, hooks) if ceiling else (None, ())
        watch = target.watch or watch_server(target.endpoint.base, identity.status)
        planned = plan(terms)
        rows, interrupted = runner.run(_rows(target, terms, planned, watch, hooks))
        left = len(planned) - len(rows)
    cut = [f"interrupted: {left} more rows weren't measured"] if interrupted and left else []
    said = (*notes, *terms.notes(), *unknown, *cut)
    return Measured(make_result(bench, identity.subject, limits, rows, said), interrupted)


def _ceiling(identity: Identity, hooks: Hooks) -> tuple[Ceiling | None, tuple[str, ...]]:
    """What is possible here, or why that isn't known."""
    if identity.file is None:
        return None, ("no ceiling: the model's file isn't known here (--model-file names it)",)
    hooks.doing("measuring memory and arithmetic")
    gpu = identity.on_gpu
    if gpu is None:
        # It doesn't say: with a card, that is what it runs on.
        gpu = bool(read_gpus().cards)
    try:
        return measure_ceiling(identity.file, gpu=gpu), ()
    except ForgeError as error:
        return None, (f"no ceiling: {error}",)
