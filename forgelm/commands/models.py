"""`forgelm models`: what is on this machine."""

from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec
import rich_click

from forgelm.commands.terminal import echo, one_line, size_text
from forgelm.ipc.registry import Installed, InstalledModels

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 90
"""Columns from which on a table is easier to read than a paragraph for each model."""


@click.command(cls=rich_click.RichCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with paths and all that is known.")
def models(as_json: bool) -> None:
    """List the models on this machine, with the names that `forgelm serve --model` takes."""
    from forgelm import log
    from forgelm.commands.library import open_shelf

    log.configure("warning")
    with open_shelf() as shelf:
        found = shelf.listing()
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    if found.models:
        _print(found)
    else:
        click.echo("no models yet: `forgelm pull starter` fetches a small one, `forgelm search` finds others", err=True)
    for path in found.missing:
        click.echo(f"not there at the moment: {one_line(path)}", err=True)


def _print(found: InstalledModels) -> None:
    from rich.padding import Padding

    from forgelm.commands.tables import console

    out = console()
    if out.width >= WIDE:
        out.print(_table(found))
    else:
        for model in found.models:
            out.print(one_line(model.id))
            out.print(Padding(_facts_in_words(model), (0, 0, 0, 2)))
    for model in found.models:
        if model.problem:
            echo(click.style(f"{one_line(model.id)} can't be served: {one_line(model.problem)}", fg="red"))
        elif model.note:
            echo(f"{one_line(model.id)}: {one_line(model.note)}")


def _table(found: InstalledModels) -> "Table":
    from forgelm.commands.tables import table

    rows = table()
    rows.add_column("model", overflow="fold", ratio=2)
    rows.add_column("size", justify="right", no_wrap=True)
    rows.add_column("quant", overflow="fold")
    rows.add_column("context", justify="right", no_wrap=True)
    rows.add_column("", overflow="fold", ratio=1)
    rows.add_column("from", no_wrap=True)
    rows.add_column("last used", no_wrap=True)
    for model in found.models:
        rows.add_row(
            one_line(model.id),
            size_text(model.bytes),
            one_line(model.quant),
            f"{model.context:,}" if model.context else "",
            ", ".join(facts(model)),
            model.origin,
            _day(model.last_used),
        )
    return rows


def _facts_in_words(model: Installed) -> str:
    context = f"context {model.context:,}" if model.context else ""
    used = f"last used {_day(model.last_used)}"
    words = [size_text(model.bytes), one_line(model.quant), context, *facts(model), f"from {model.origin}", used]
    return ", ".join(filter(None, words))


def facts(model: Installed) -> list[str]:
    """What a person should know of a model before serving it, in a word each."""
    if model.problem:
        return ["unusable"]
    words: list[str] = [] if model.kind == "chat" else [model.kind]
    words += ["MTP"] if model.mtp_head else []
    words += ["no template"] if model.kind == "chat" and not model.template else []
    words += [f"profile {one_line(model.profile)}"] if model.profile else []
    return words


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else "never"
