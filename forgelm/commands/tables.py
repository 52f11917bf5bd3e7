"""Tables on stdout: as wide as the terminal, and where there is none wide enough for what reads them next."""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from forgelm.commands.terminal import coloured

WIDTH = 120
"""Columns where there is no terminal to ask."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the program's entry, which knows the exit code, what happens when nobody reads our output."""
        raise  # noqa: PLE0704  it is called from where the error is caught


def console() -> Console:
    """Writes to stdout what isn't told to be marked up."""
    width = None if sys.stdout.isatty() else WIDTH
    return _Console(
        file=sys.stdout, width=width, no_color=not coloured(sys.stdout), highlight=False, markup=False, emoji=False
    )


def table() -> Table:
    """An empty one."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
