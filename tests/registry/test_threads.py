"""Work handed to threads: its result or error comes back, not too much runs at once, and nobody waits for ever."""

import asyncio
import threading

import pytest

from forgelm.errors import RegistryUnavailable
from forgelm.registry.threads import AT_ONCE, Threads


async def test_results_and_errors_come_back() -> None:
    threads = Threads()
    assert await threads.run(lambda one, *, two: (one, two), 1, two=2) == (1, 2)
    assert await threads.run(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


async def test_not_too_much_runs_at_once() -> None:
    threads, go = Threads(), threading.Event()
    lock, running, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert go.wait(30)
        with lock:
            running[0] -= 1

    tasks = [asyncio.create_task(threads.run(work)) for _ in range(3 * AT_ONCE)]
    while running[0] < AT_ONCE:
        await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(*tasks)
    assert (most, running) == ([AT_ONCE], [0])


async def test_who_waits_is_told_of_the_end() -> None:
    threads, go = Threads(), threading.Event()
    tasks = [asyncio.create_task(threads.run(go.wait)) for _ in range(AT_ONCE + 1)]
    await asyncio.sleep(0.05)
    threads.give_up()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    go.set()
    assert all(isinstance(each, RegistryUnavailable) for each in done), done


async def test_work_that_nobody_waits_for_goes_on() -> None:
    threads, go, over = Threads(), threading.Event(), threading.Event()

    def work() -> None:
        go.wait(30)
        over.set()

    task = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await asyncio.to_thread(over.wait, 30)
