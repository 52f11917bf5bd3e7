"""The `forgelm` command: its subcommands, and how every failure becomes one line and an exit code.

It does nothing itself. A subcommand's module is imported when that command runs, so `forgelm version` doesn't
pay for what `serve` needs.
"""

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import click
import rich_click
from click.shell_completion import shell_complete

from forgelm import __version__
from forgelm.commands.terminal import one_line
from forgelm.errors import ForgeError

PROGRAM = "forgelm"
COMPLETE_VARIABLE = "_FORGELM_COMPLETE"
LOG_LEVELS = ("debug", "info", "warning", "error")

INTERRUPTED = 130  # as shells report a program that SIGINT ended
BROKEN_PIPE = 141  # likewise for SIGPIPE


class Entry(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "serve": Entry("forgelm.commands.serve", "serve", "Serve a model over an OpenAI-compatible API."),
    "search": Entry("forgelm.commands.search", "search", "Look for models on the hub; say which files fit."),
    "pull": Entry("forgelm.commands.pull", "pull", "Fetch a model from the hub, or the starter."),
    "models": Entry("forgelm.commands.models", "models", "List the models on this machine."),
    "import": Entry("forgelm.commands.import_models", "import_models", "List models of other programs where they are."),
    "verify": Entry("forgelm.commands.verify", "verify", "Check models against their sha256."),
    "rm": Entry("forgelm.commands.rm", "rm", "Delete a model, or forget an imported one."),
    "fit": Entry("forgelm.commands.fit", "fit", "Say whether a model fits, and with how much context."),
    "chat": Entry("forgelm.commands.chat", "chat", "Talk to a running server in the terminal."),
    "ps": Entry("forgelm.commands.ps", "ps", "Show what a running server does."),
    "bench": Entry("forgelm.commands.bench", "bench", "Measure this machine with a model."),
    "doctor": Entry("forgelm.commands.doctor", "doctor", "Check this machine; say how to fix what is wrong."),
    "registry": Entry("forgelm.commands.registry", "registry", "Run the registry by itself, for a server to use."),
    "paths": Entry("forgelm.commands.paths", "paths", "Print where ForgeLM keeps its files."),
    "version": Entry("forgelm.commands.version", "version", "Print the versions of ForgeLM and llama.cpp."),
    "completion": Entry("forgelm.commands.completion", "completion", "Print a shell's completion script."),
}


class LazyGroup(rich_click.RichGroup):
    """A group that lists its commands from `COMMANDS` and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A stand-in with the help line, which is all that `--help` and completion ask for."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else rich_click.RichCommand(name=cmd_name, help=entry.summary)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name and stand_in else None, rest


def _load(name: str) -> click.Command:
    entry = COMMANDS[name]
    command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
    return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    envvar="FORGELM_LOG_LEVEL",
    show_envvar=True,
    help="How much goes to stderr; JSON lines when stderr is no terminal.",
)
@click.version_option(__version__, message=f"{PROGRAM} %(version)s")
def forgelm(log_level: str) -> None:
    """A local inference server for small and medium models.

    Start with `forgelm doctor`, then `forgelm serve`.
    """
    # Commands that log read `log_level` from the root context: importing structlog for all costs 60 ms.
    del log_level


def main() -> None:
    """Run what the command line says, and exit."""
    _require_streams()
    sys.exit(run(sys.argv[1:]))


def _require_streams() -> None:
    """Open the standard streams that whoever started us has closed (`>&-`).

    Python has None for them, and the files opened next get their numbers: C libraries would write into a model.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; expected failures are one line on stderr."""
    try:
        code = _run(arguments)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # a broken pipe must show here, not in the interpreter's exit
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _output_failed(error)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        return _dispatch(arguments)
    except (ForgeError, click.ClickException) as error:
        print(_line(error), file=sys.stderr)
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return INTERRUPTED


def _output_failed(error: OSError) -> int:
    """The exit code when nobody reads our output, or the disk it goes to is full; anything else is a bug."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        raise error
    _give_up(sys.stdout)
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            print(f"{PROGRAM}: {error.strerror}", file=sys.stderr)
    _give_up(sys.stderr)
    return BROKEN_PIPE if error.errno == errno.EPIPE else 1


def _give_up(stream: TextIO) -> None:
    """Drop what is still buffered and can't be written: it would fail again when the interpreter flushes it."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: Sequence[str]) -> int:
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from forgelm.commands.completing import teach_bash

        teach_bash()
        return shell_complete(forgelm, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    # Not `forgelm.main()`: it writes a blank line when interrupted, and boxes around errors.
    with forgelm.make_context(PROGRAM, list(arguments)) as ctx:
        forgelm.invoke(ctx)
    return 0


def _line(error: ForgeError | click.ClickException) -> str:
    if isinstance(error, ForgeError):
        return f"{PROGRAM}: {one_line(str(error))}"  # it may quote what strangers wrote
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return message  # the help itself
    if isinstance(error, click.NoSuchOption) and error.ctx and not (error.ctx.parent or error.possibilities):
        # `docker run IMAGE --port 9000` takes the place of the image's `serve`.
        message = f"{message.rstrip('.')}: options come after a command, as in `{PROGRAM} serve --port 8080`"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = f"{message.rstrip('.')} (see `{error.ctx.command_path} --help`)"
    return f"{PROGRAM}: {message}"
