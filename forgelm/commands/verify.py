"""`forgelm verify`: the bytes of models against the sha256 they should have."""

import threading
from functools import partial
from typing import TYPE_CHECKING

import click
import rich_click

from forgelm.commands.completing import complete_models
from forgelm.commands.progress import Advance, interruptible, progress
from forgelm.commands.terminal import echo, one_line
from forgelm.errors import RequestError
from forgelm.ipc.registry import Installed

if TYPE_CHECKING:
    from forgelm.registry.library import Library


@click.command(cls=rich_click.RichCommand)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_models)
def verify(ids: tuple[str, ...]) -> None:
    """Read models, all of them if no ID is given, and compare their sha256 with what the hub or a profile says.

    Where neither says anything, with what it was the last time. Exits with 1 if one is damaged or can't be served.
    Nothing is changed: `forgelm rm` deletes a damaged one.
    """
    from forgelm import log
    from forgelm.commands.library import open_shelf

    log.configure("warning")
    wrong = 0
    with open_shelf() as shelf, progress() as advance:
        models = [shelf.find(each) for each in ids] if ids else shelf.installed()
        for model in models:
            try:
                after = interruptible(partial(_verify, shelf, model, advance))
                problem = _problem(model, after)
            except RequestError as error:
                # It can't be read, or is gone by now: the others are still to be checked.
                after, problem = model, str(error)
            wrong += bool(problem)
            echo(_verdict(model, after, problem))
    if not models:
        click.echo("there are no models to verify", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


def _verify(shelf: "Library", model: Installed, advance: Advance, cancel: threading.Event) -> Installed:
    return shelf.verify(model.path, lambda now: advance(model.id, now.bytes, now.total), cancel)


def _problem(before: Installed, after: Installed) -> str:
    """What is wrong with a model; "" where nothing is. `before` has the sha256 that is known of its file as it is."""
    if not after.problem and before.sha256 not in ("", after.sha256):
        return f"its sha256 was {before.sha256} when it was last read and is {after.sha256} now"
    return after.problem


def _verdict(before: Installed, after: Installed, problem: str) -> str:
    name = one_line(after.id)
    if problem:
        return click.style(f"wrong    {name}: {one_line(problem)}", fg="red")
    if before.sha256 or before.origin == "hub":
        return f"{click.style('right', fg='green')}    {name}"
    return f"unknown  {name}: nobody says what its sha256 should be; it is {after.sha256}"
