"""`forgelm rm`: delete a model, or forget one that was imported."""

from typing import TYPE_CHECKING

import click
import rich_click

from forgelm.commands.completing import complete_models
from forgelm.commands.terminal import can_ask, confirm, one_line, size_text
from forgelm.errors import ModelNotFound

if TYPE_CHECKING:
    from forgelm.registry.library import Library


@click.command(cls=rich_click.RichCommand)
@click.argument("model", metavar="ID", shell_complete=complete_models)
@click.option("--yes", is_flag=True, help="Don't ask.")
def rm(model: str, yes: bool) -> None:
    """Delete the model ID of `forgelm models`; of an imported one only forget where it is.

    A running server that has the model loaded goes on with it, and the room on the disk is free once that server lets
    it go.
    """
    from forgelm import log
    from forgelm.commands.library import open_shelf

    log.configure("warning")
    with open_shelf() as shelf:
        if not yes and can_ask() and not confirm(_question(shelf, model)):
            raise click.exceptions.Exit(1)
        gone = shelf.remove(model)
    done = f"forgotten; its file stays at {gone.path}" if gone.origin == "import" else "deleted"
    click.echo(one_line(f"{gone.id} is {done}"), err=True)


def _question(shelf: "Library", name: str) -> str:
    """Raises `ModelNotFound`."""
    try:
        model = shelf.find(name)
    except ModelNotFound:
        if name in shelf.listing().missing:
            return one_line(f"Forget {name}, which isn't there at the moment?")
        raise
    if model.origin == "import":
        return one_line(f"Forget {model.id}? Its file stays at {model.path}")
    return one_line(f"Delete {model.id} ({size_text(model.bytes)}) at {model.path}?")
