"""`forgelm completion`: the script that teaches a shell to complete `forgelm`."""

import click
import rich_click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=rich_click.RichCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    bash   eval "$(forgelm completion bash)"         in ~/.bashrc
    zsh    eval "$(forgelm completion zsh)"          in ~/.zshrc, after compinit
    fish   forgelm completion fish | source          in ~/.config/fish/config.fish
    """
    root = ctx.find_root()
    maker = get_completion_class(shell)
    assert maker is not None  # click has all three
    click.echo(maker(root.command, {}, "forgelm", "_FORGELM_COMPLETE").source())
