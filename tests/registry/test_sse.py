"""Events of something that goes on: not one for each change, and the last one always."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from forgelm.registry.ending import Ending
from forgelm.registry.sse import LEAST_SECONDS, PING_SECONDS, events


class State(msgspec.Struct):
    count: int
    ended: bool = False
    rate: float = 0.0


class Counter:
    """Changes a thousand times each time it was looked at, up to its end."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.count = 0
        self.notify: Callable[[], None] = lambda: None
        self.watchers = 0

    def snapshot(self) -> State:
        now = State(self.count, ended=self.looks == 0)
        self.looks -= 1
        for _ in range(1000):
            self.count += 1
            self.notify()
        return now

    @contextmanager
    def watched(self, notify: Callable[[], None]) -> Iterator[None]:
        self.notify, self.watchers = notify, self.watchers + 1
        yield
        self.watchers -= 1


async def test_many_changes_are_few_events() -> None:
    counter = Counter(2)
    seen = [msgspec.json.decode(data.removeprefix(b"data: "), type=State) async for data in events(counter, Ending())]
    assert seen == [State(0), State(1000), State(2000, ended=True)]
    assert counter.watchers == 0


async def test_it_ends_when_there_will_be_no_more() -> None:
    ending = Ending()
    ending.begin()
    assert len([data async for data in events(Counter(1000), ending)]) == 1


async def test_who_waits_is_woken_by_the_end() -> None:
    still = Counter(1000)
    still.snapshot = lambda: State(1)  # type: ignore[method-assign]
    ending = Ending()
    stream = events(still, ending)
    assert await anext(stream) == b'data: {"count":1,"ended":false,"rate":0.0}\n\n'
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(2 * LEAST_SECONDS)
    ending.begin()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, PING_SECONDS / 2)
