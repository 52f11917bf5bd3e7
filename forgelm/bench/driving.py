"""A load on a server, and the row of figures that comes of it.

In a closed loop so many clients wait for their answers and ask again. In an open one requests arrive whatever becomes
of those before; their latencies count from the time at which they were due, so that a server (or a client) that falls
behind can't hide it. Answers are decoded when all is over.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from forgelm.bench.client import Client, Endpoint
from forgelm.bench.result import Row
from forgelm.bench.streams import Failed
from forgelm.bench.tally import LoadFacts, Outcome, Tally
from forgelm.bench.terms import CHAT, Terms, learn
from forgelm.bench.watching import Watch
from forgelm.bench.workloads import Ask, Session, Workload, said, texts_of

Arrivals = Literal["poisson", "constant"]
Progress = Callable[[int, int], None]
"""Told how many of how many requests have ended; of 0 where only the time is limited."""

PAUSE_SECONDS = 0.25
"""After a failure a client of a closed loop waits so long: a server that refuses at once isn't asked in a spin."""
WARM_UP_TOKENS = 8
PREPARED = 256
"""Requests whose texts are written beforehand where their number isn't known."""


@dataclass(frozen=True)
class Closed:
    """So many clients, each of which waits for its answer. Ends after `requests`, or begins nothing after `seconds`."""

    clients: int
    requests: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Open:
    """So many requests per second. Ends as a closed loop does."""

    rate: float
    requests: int = 0
    seconds: float = 0.0
    arrivals: Arrivals = "poisson"


@dataclass(frozen=True)
class Timed:
    """Sessions that begin at given times, in seconds from the start: a recorded load."""

    times: tuple[float, ...]


Load = Closed | Open | Timed


async def drive(
    endpoint: Endpoint,
    workload: Workload,
    load: Load,
    *,
    watch: Watch | None = None,
    progress: Progress | None = None,
    terms: Terms | None = None,
    stop: asyncio.Event | None = None,
) -> Row:
    """Put `load` on the server and measure until the last answer has ended.

    `terms` are what `learn` has found, which is asked for first where they aren't given. `watch` looks at the server's
    memory meanwhile. When `stop` is set, what is under way is hung up on, and the row has what had ended by then.
    Failures are counted in the row. Raises `ForgeError` when the server can't be reached or refuses the plainest
    request.
    """
    terms = terms or await learn(endpoint)
    client = Client(endpoint)
    await _warm_up(client, workload, terms)
    run = _Run(client, workload, terms, progress or (lambda _done, _total: None), _amount(load, workload))
    run.prepare(_amount(load, workload) or PREPARED)
    begun = time.perf_counter()
    async with _watched(watch):
        interrupted = await _until_stopped(_load(run, load, begun), stop)
    peaks = watch.peaks if watch is not None else None
    return run.tally.row(workload, load_of(load, workload), peaks, interrupted=interrupted)


def load_of(load: Load, workload: Workload) -> LoadFacts:
    """What the row says of it."""
    match load:
        case Closed():
            return LoadFacts("closed", clients=load.clients)
        case Open():
            return LoadFacts("open", rate=load.rate)
        case Timed():
            span = load.times[-1] - load.times[0] if load.times else 0.0
            rate = (len(load.times) - 1) * workload.turns / span if span > 0 else 0.0
            return LoadFacts("open", rate=rate, recorded=True)


def _amount(load: Load, workload: Workload) -> int:
    """How many requests there will be; 0 where that isn't known."""
    if isinstance(load, Timed):
        return len(load.times) * workload.turns
    # An open loop's sessions are never cut short.
    return load.requests if isinstance(load, Closed) else -(-load.requests // workload.turns) * workload.turns


async def _warm_up(client: Client, workload: Workload, terms: Terms) -> None:
    """One request that counts for nothing and has nothing in common with those that do."""
    text = texts_of(workload.sizes.seed, -2).words(16)
    await client.send(CHAT, Ask({"messages": [said("user", text)]}, WARM_UP_TOKENS).body(terms))


@asynccontextmanager
async def _watched(watch: Watch | None) -> AsyncIterator[None]:
    if watch is None:
        yield
        return
    with watch:
        yield


async def _until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event | None) -> bool:
    """Whether `stop` came before the work had ended."""
    tasks = [asyncio.ensure_future(work)]
    if stop is not None:
        tasks.append(asyncio.ensure_future(_set(stop)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return not tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class _Opened(NamedTuple):
    """A session with its first request."""

    session: Session
    ask: Ask
    body: bytes


class _Run:
    """The sessions of one row."""

    def __init__(self, client: Client, workload: Workload, terms: Terms, progress: Progress, total: int) -> None:
        self.workload = workload
        self._client = client
        self._terms = terms
        self._progress = progress
        self._total = total
        self._begun = 0
        self._numbers = 0
        self._ready: deque[_Opened] = deque()
        self.tally = Tally(terms)

    def prepare(self, requests: int) -> None:
        """Write the first texts of so many requests' sessions: while it is measured that would take from the server."""
        if self.workload.ahead:
            self._ready.extend(self._open() for _ in range(-(-requests // self.workload.turns)))

    def next_session(self) -> "_Opened":
        """One that nobody has had yet."""
        return self._ready.popleft() if self._ready else self._open()

    def _open(self) -> "_Opened":
        number, self._numbers = self._numbers, self._numbers + 1
        session = self.workload.session(number, self._terms)
        ask = next(session)
        return _Opened(session, ask, self._encoded(ask))

    def _encoded(self, ask: Ask) -> bytes:
        return msgspec.json.encode(ask.body(self._terms))

    def may_begin(self, requests: int, deadline: float) -> bool:
        """Whether one more request is wanted."""
        return (not requests or self._begun < requests) and time.perf_counter() < deadline

    async def follow(
        self, opened: "_Opened", *, due: float = 0.0, requests: int = 0, deadline: float = float("inf")
    ) -> bool:
        """Ask one session's requests one after another. `due`: when the first should be sent; 0 is now.

        Whether all were answered, as far as could be told at a glance.
        """
        session, ask, body = opened
        while self.may_begin(requests, deadline):
            self._begun += 1
            sent = await self._client.send(ask.route, body)
            self.tally.add(Outcome(ask, sent, due or sent.sent, timed=bool(due)))
            self._progress(len(self.tally), self._total)
            if sent.refused:
                return False
            if not self.workload.listens:
                break
            try:
                ask = session.send(sent.answer().text)
                body = self._encoded(ask)
            except (StopIteration, Failed):
                break
            # What somebody says next is due when the answer has been read, which takes no time here.
            due = 0.0
        return True


async def _load(run: _Run, load: Load, begun: float) -> None:
    if isinstance(load, Closed):
        deadline = begun + load.seconds if load.seconds else float("inf")
        async with asyncio.TaskGroup() as clients:
            for _ in range(load.clients):
                clients.create_task(_closed(run, load.requests, deadline))
        return
    times: Iterator[float] | Sequence[float] = (
        load.times if isinstance(load, Timed) else arrival_times(load, run.workload)
    )
    async with asyncio.TaskGroup() as arrived:
        for at in times:
            due = begun + at
            await asyncio.sleep(due - time.perf_counter())
            arrived.create_task(run.follow(run.next_session(), due=due))


async def _closed(run: _Run, requests: int, deadline: float) -> None:
    while run.may_begin(requests, deadline):
        if not await run.follow(run.next_session(), requests=requests, deadline=deadline):
            await asyncio.sleep(PAUSE_SECONDS)


def arrival_times(load: Open, workload: Workload) -> Iterator[float]:
    """When sessions arrive, in seconds from the start; the same for the same seed."""
    rate = load.rate / workload.turns
    chance = random.Random(f"{workload.sizes.seed}/arrivals")
    at, count = 0.0, 0
    while (not load.requests or count * workload.turns < load.requests) and (not load.seconds or at < load.seconds):
        yield at
        count += 1
        at += chance.expovariate(rate) if load.arrivals == "poisson" else 1 / rate
