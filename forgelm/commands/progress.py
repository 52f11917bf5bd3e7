"""How far something is that takes a while: a bar on a terminal, elsewhere a line as each thing begins."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import click

from forgelm.commands.terminal import one_line

T = TypeVar("T")

Advance = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many bytes are done; from any thread."""


@contextmanager
def progress() -> Iterator[Advance]:
    """A bar on stderr where that is a terminal; elsewhere a line as each thing begins."""
    if not sys.stderr.isatty():
        yield beginnings()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.progress import TransferSpeedColumn as Speed

    words = TextColumn("{task.description:9}", markup=False)
    console = Console(stderr=True)
    bar = Progress(words, BarColumn(), DownloadColumn(), Speed(), Remaining(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int) -> None:
        if what not in tasks:
            # What is here from an earlier attempt isn't part of the rate.
            tasks[what] = bar.add_task(one_line(what), total=total, completed=done)
            bar.start()  # only now: where nothing is fetched nothing is drawn
        for name, task in tasks.items():
            bar.update(task, visible=name == what)
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()


def beginnings() -> Advance:
    """Says on stderr what begins and how large it is, and no more."""
    begun: set[str] = set()

    def advance(what: str, _done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            click.echo(f"{one_line(what)} {total / 1e6:.1f} MB", err=True)

    return advance


def interruptible(work: Callable[[threading.Event], T]) -> T:
    """Do `work` in a thread; on Ctrl-C set its event, and leave when it has stopped in order."""
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, cancel)
        try:
            return future.result()
        except KeyboardInterrupt:
            cancel.set()
            raise
