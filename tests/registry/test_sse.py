"""Events of something that goes on: not one for each change, and the last one always."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from forgelm.registry.sse import events


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
    seen = [
        msgspec.json.decode(data.removeprefix(b"data: "), type=State) async for data in events(counter, lambda: False)
    ]
    assert seen == [State(0), State(1000), State(2000, ended=True)]
    assert counter.watchers == 0


async def test_it_ends_when_there_will_be_no_more() -> None:
    assert len([data async for data in events(Counter(1000), lambda: True)]) == 1
