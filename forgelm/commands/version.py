"""`forgelm version`: ours, the bindings' and llama.cpp's."""

import click
import rich_click

from forgelm import __version__


@click.command(cls=rich_click.RichCommand)
def version() -> None:
    """Print the versions of ForgeLM, llama-cpp-python and llama.cpp."""
    from forgelm import log

    log.configure("error")  # a GPU build announces its devices when it is loaded
    from forgelm.llama.lib import build_info

    build = build_info()
    click.echo(f"forgelm           {__version__}")
    click.echo(f"llama-cpp-python  {build.bindings}")
    click.echo(f"llama.cpp         {build.commit} ({build.version})")
