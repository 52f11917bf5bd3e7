"""`forgelm registry`: the registry sidecar by itself, for a server that is told `--registry-socket`."""

import os
import signal
import sys
from pathlib import Path
from typing import Literal, get_args

import click
import rich_click

Format = Literal["auto", "json", "console"]

MODULE = "forgelm.registry.main"


@click.command(cls=rich_click.RichCommand)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FORGELM_REGISTRY_SOCKET",
    help="Where to listen; only this user may connect.",
)
@click.option(
    "--log-format",
    type=click.Choice(get_args(Format)),
    default="auto",
    envvar="FORGELM_LOG_FORMAT",
    help="How lines look; auto is JSON unless stderr is a terminal.",
)
@click.option("--offline", is_flag=True, envvar="FORGELM_OFFLINE", help="Never reach out of this machine.")
@click.pass_context
def registry(ctx: click.Context, socket: Path, log_format: Format, *, offline: bool) -> None:
    """Run the registry by itself, until Ctrl-C: search, downloads and the list of models for a server.

    `forgelm serve` runs one of its own unless it is told `--registry-socket PATH` or `--no-registry`. Downloads that
    were begun go on.
    """
    from forgelm import log
    from forgelm.commands.library import registry_config
    from forgelm.registry.settings import ENDINGS

    level = ctx.find_root().params.get("log_level", "info")
    log.configure(level, log_format, process="registry")
    config = registry_config(socket.expanduser().absolute(), level, offline=offline)
    click.echo(f"the registry is at {socket}: `forgelm serve --registry-socket {socket}` uses it", err=True)
    # They wait until the new program can take them: a container's first process would never hear of them otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    # In this process's place: it has llama.cpp in it by now, which the registry never loads.
    os.execv(sys.executable, [sys.executable, "-m", MODULE, config])
