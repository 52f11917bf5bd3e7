"""Names of installed models for the shell's Tab key."""

import click
from click.shell_completion import CompletionItem


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids that begin with what is typed; nothing where the models can't be read, since a Tab has nowhere to say so."""
    from forgelm import log
    from forgelm.commands.library import open_shelf

    log.configure("error")
    del ctx, param
    try:
        with open_shelf() as shelf:
            found = shelf.installed()
    except Exception:  # noqa: BLE001
        return []
    return [CompletionItem(model.id) for model in found if model.id.casefold().startswith(incomplete.casefold())]


def complete_models_and_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same, and paths where no id begins so."""
    return complete_models(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]
