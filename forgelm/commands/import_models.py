"""`forgelm import`: list models that other programs put on this machine, from where they are."""

import shlex
from pathlib import Path

import click
import msgspec
import rich_click

from forgelm.commands.terminal import one_line, size_text
from forgelm.errors import InvalidRequest, ModelError
from forgelm.ipc.registry import Imported, Installed

SHOWN = 20
"""Companions named before the rest are counted."""


@click.command(cls=rich_click.RichCommand)
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def import_models(path: str, as_json: bool) -> None:
    """List the models at PATH, a GGUF or a folder, from where they are: nothing is copied, moved or changed.

    Knows the folders of LM Studio (`~/.lmstudio/models`), the Hugging Face cache (`~/.cache/huggingface/hub`) and
    Ollama (`~/.ollama/models`), whose settings become profiles. Any other folder is looked through with all that is in
    it. Exits with 1 if there is no model that can be served.
    """
    from forgelm import log
    from forgelm.commands.library import open_shelf

    log.configure("warning")
    if not path:
        # As a path it would be the folder that this is run in.
        raise InvalidRequest("name a file or folder", param="path")
    with open_shelf() as shelf:
        found = shelf.add(Path(path))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)
    if not found.models:
        raise ModelError(f"there is no model at {path} that can be served")


def _print(found: Imported) -> None:
    for model in found.models:
        click.echo(one_line(f"{model.id}  {size_text(model.bytes)}  {model.path}"))
    for model in found.models:
        if model.note:
            click.echo(one_line(f"{model.id}: {model.note}"), err=True)
    for file, reason in found.refused.items():
        click.echo(one_line(f"refused {file}: {reason.removeprefix(f'{file} ')}"), err=True)
    for file in found.companions[:SHOWN]:
        click.echo(one_line(f"goes with a model and is none: {file}"), err=True)
    if len(found.companions) > SHOWN:
        click.echo(f"and {len(found.companions) - SHOWN} more such files", err=True)
    for profile in found.profiles:
        click.echo(one_line(f"wrote profile {profile}"), err=True)
    if servable := [model for model in found.models if not model.problem]:
        click.echo(f"serve one with `{_serve(servable[0])}`", err=True)


def _serve(model: Installed) -> str:
    if model.profile:
        return f"forgelm serve --profile {one_line(model.profile)}"
    return f"forgelm serve --model {shlex.quote(one_line(model.id))}"
