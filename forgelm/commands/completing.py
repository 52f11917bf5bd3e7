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
        found = open_shelf().installed()
    except Exception:  # noqa: BLE001
        return []
    return [CompletionItem(model.id) for model in found if model.id.casefold().startswith(incomplete.casefold())]
