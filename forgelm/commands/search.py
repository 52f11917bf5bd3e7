"""`forgelm search`: models on the hub, and which of their files fit this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import click
import msgspec
import rich_click

from forgelm.commands.terminal import one_line, size_text
from forgelm.ipc.registry import HubFile, HubModel, SearchResult, Sort
from forgelm.ipc.registry import Search as Wanted

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

SHOWN = 6
"""Files of one repository, where several repositories are shown."""
USUAL = ("Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q3_K_M", "Q4_0")
"""Quantizations shown before others."""


@click.command(cls=rich_click.RichCommand)
@click.argument("query", nargs=-1)
@click.option("--author", default="", help="Only this account's or organization's.")
@click.option("--sort", type=click.Choice(get_args(Sort)), default="downloads", show_default=True)
@click.option("--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="Repositories at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all files.")
@click.option("--offline", is_flag=True, envvar="FORGELM_OFFLINE", help="Never reach out of this machine.")
def search(*, query: tuple[str, ...], author: str, sort: Sort, limit: int, as_json: bool, offline: bool) -> None:
    """Look for models on the hub: repositories with GGUF files that have QUERY in their names.

    Whether a file fits is what `forgelm fit` would say, with what is free now; for a model that isn't known here it is
    a guess from the file's size. `forgelm pull` reads the file's header before it fetches anything.
    """
    from forgelm import log
    from forgelm.commands.library import open_library

    log.configure("error")
    with open_library(offline=offline) as library:
        found = library.search(Wanted(" ".join(query), author, sort, limit))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    elif found.models:
        _print(found)
        click.echo("`forgelm pull OWNER/REPOSITORY:QUANT` fetches one", err=True)
    else:
        click.echo("no repository with GGUF files is called so", err=True)


def _print(found: SearchResult) -> None:
    from forgelm.commands.tables import console

    out = console()
    only = len(found.models) == 1
    shown = [(model, model.files if only else most_wanted(model.files)) for model in found.models]
    width = max((len(_name(file, model.files)) for model, files in shown for file in files), default=0)
    for number, (model, files) in enumerate(shown):
        if number:
            out.print()
        out.print(_heading(model))
        if files:
            out.print(_files(model, files, width))
        if left := len(model.files) - len(files):
            out.print(f"  and {left} more: `forgelm search {one_line(model.repo)}` shows all")


def most_wanted(files: Sequence[HubFile]) -> list[HubFile]:
    """Some of many: what is here, then the usual quantizations, then the largest that fit; by size."""
    fitting = sorted(files, key=lambda file: (not (file.fit and file.fit.fits), -file.bytes))
    usual = sorted((file for file in files if file.quant in USUAL), key=lambda file: USUAL.index(file.quant))
    ranked = dict.fromkeys([*(file for file in files if file.here), *usual, *fitting])
    return sorted(list(ranked)[:SHOWN], key=lambda file: file.bytes)


def _heading(model: HubModel) -> "Text":
    from rich.text import Text

    words = [f"{model.downloads:,} downloads", one_line(model.license) or "no licence stated"]
    words += ["gated: its terms have to be accepted on the hub"] if model.gated else []
    if not model.files:
        words.append("its files can't be seen without access" if model.gated else "no model that is one file or whole")
    return Text.assemble((one_line(model.repo), "bold"), "  ", (", ".join(words), "dim"))


def _files(model: HubModel, files: Sequence[HubFile], width: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=0)
    grid.add_column(min_width=min(width, 24), overflow="fold")
    grid.add_column(justify="right", no_wrap=True, min_width=8)
    grid.add_column(no_wrap=True, min_width=4)
    grid.add_column(overflow="fold")
    for file in files:
        fit = ""
        if file.fit:
            fit = f"{'fits' if file.fit.fits else 'too large'}: {one_line(file.fit.detail)}"
        style = "" if file.fit and file.fit.fits else "dim"
        here = Text("here", "green") if file.here else Text()
        grid.add_row("", _name(file, model.files), size_text(file.bytes), here, Text(fit, style))
    return grid


def _name(file: HubFile, files: Sequence[HubFile]) -> str:
    """What tells a file from the others of its repository."""
    same = [each for each in files if each.quant == file.quant]
    parts = f" in {file.parts}" if file.parts > 1 else ""
    return one_line(file.quant if file.quant and len(same) == 1 else file.file) + parts
