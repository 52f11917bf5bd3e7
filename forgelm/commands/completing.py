"""Names of installed models for the shell's Tab key; and Bash's completion, made to understand colons in them."""

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class


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


class ColonBash(BashComplete):
    """Click's completion for Bash, which ends words at colons: `owner/model:Q8_0` comes as three words, and what is
    offered replaces the last of them alone."""

    _typed = ""
    """The part of the word that Bash keeps."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        whole: list[str] = []
        goes_on = False
        for word in [*args, incomplete]:
            if whole and (goes_on or word == ":"):
                whole[-1] += word
            else:
                whole.append(word)
            goes_on = word == ":"
        if whole[-1] != incomplete:
            self._typed = whole[-1][: whole[-1].rindex(":") + 1]
        return whole[:-1], whole[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value[len(self._typed) :]}"


def teach_bash() -> None:
    """Have click use `ColonBash`."""
    add_completion_class(ColonBash)
