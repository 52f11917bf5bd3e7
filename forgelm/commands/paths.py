"""`forgelm paths`: where ForgeLM keeps its files."""

import click
import rich_click

from forgelm.paths import everything


@click.command(cls=rich_click.RichCommand)
def paths() -> None:
    """Print where ForgeLM keeps its files, whether or not they exist yet.

    XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_CACHE_HOME and XDG_STATE_HOME move them; FORGELM_MODELS moves the
    models alone. Removing these directories removes every trace of ForgeLM but the program.
    """
    places = everything()
    width = max(map(len, places))
    for name, path in places.items():
        click.echo(f"{name:{width}}  {path}")
