"""What the commands write to a terminal: colours only where they are wanted, and no control codes from strangers."""

import os
import sys
from typing import TextIO

import click

# All of C0 and C1 but tab and newline: a model's answer must not move the cursor or rename the window.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


# And of what is one line: nothing breaks it, and nothing turns around what is read.
_BREAKING = {**_CONTROL, **dict.fromkeys((9, 10, 13, 0x85, 0x2028, 0x2029), " ")}
_BREAKING |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def coloured(stream: TextIO) -> bool:
    """Whether `stream` is a terminal whose user hasn't set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def echo(text: str, *, err: bool = False) -> None:
    """Print a line; styles are dropped unless the stream is a terminal that wants them."""
    click.echo(text, err=err, color=coloured(sys.stderr if err else sys.stdout))


def printable(text: str) -> str:
    """`text` without control characters."""
    return text.translate(_CONTROL)


def one_line(text: str) -> str:
    """`text` in one line without control characters: a licence or a name must not look like lines of ours."""
    # What isn't text, as half a character in JSON, could not be printed.
    return text.translate(_BREAKING).encode("utf-8", "replace").decode()


def can_ask() -> bool:
    """Whether there is somebody to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask on the terminal; the answer that Enter gives is no."""
    return click.confirm(question, err=True)


def size_text(size: int) -> str:
    """Bytes as shops count them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
