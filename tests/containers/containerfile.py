"""What `containers/Containerfile` says of the images, and which settings `forgelm` knows."""

import re
import shlex
import string
from dataclasses import dataclass
from typing import Any

import click

from containers.pins import ROOT
from forgelm import __version__
from forgelm.cli import forgelm
from forgelm.commands.registry import registry
from forgelm.commands.serve import serve

FILE = ROOT / "containers" / "Containerfile"


@dataclass(frozen=True)
class Image:
    """One of its targets."""

    tag: str
    user: str
    port: int
    volumes: frozenset[str]
    health: tuple[str, ...]
    """The health check's command."""
    environment: dict[str, str]


def image(target: str) -> Image:
    """What is set for a target, here or in the stages that it is made from."""
    lines = _lines(target)
    words = [word for line in lines if line.startswith("ENV ") for word in shlex.split(line)[1:]]
    environment = dict(word.split("=", 1) for word in words)
    return Image(
        f"forgelm:{__version__}{target.removeprefix('forgelm')}",
        _argument(lines, "USER"),
        int(string.Template(_argument(lines, "EXPOSE")).substitute(environment)),
        frozenset(_list(_argument(lines, "VOLUME"))),
        tuple(_list(_argument(lines, "HEALTHCHECK").partition(" CMD ")[2])),
        environment,
    )


def _lines(target: str) -> list[str]:
    """Instructions of a stage, after those of the stage below."""
    text = re.sub(r"\\\n", " ", FILE.read_text(encoding="utf-8"))
    (stage,) = re.finditer(rf"^FROM (\S+) AS {target}$(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    below = [] if "$" in stage[1] else _lines(stage[1])
    return [*below, *(line for line in stage[2].splitlines() if line[:1].isupper())]


def _argument(lines: list[str], instruction: str) -> str:
    return [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{instruction} ")][-1]


def _list(text: str) -> list[str]:
    return [word.strip(",") for word in shlex.split(text.strip("[]"))]


def variables(command: click.Command) -> set[str]:
    """The environment variables that a command of `forgelm` reads, with those of all commands."""
    options: list[Any] = [*forgelm.params, *command.params]
    return {option.envvar for option in options if option.envvar}


SERVER = variables(serve)
REGISTRY = variables(registry)
