"""What `containers/Containerfile` says of the images, and which settings `forgelm` knows."""

import shlex
import string
from dataclasses import dataclass
from typing import Any

import click

from forgelm import __version__
from forgelm.cli import forgelm
from forgelm.commands.registry import registry
from forgelm.commands.serve import serve
from tests.containers.stages import whole

MARGIN = 4.0
"""Seconds from the end of the drain to the kill: a last word to those who go on, the engine's end, the registry's."""


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
    stage = whole(target)
    environment = dict(word.split("=", 1) for line in stage.all("ENV") for word in shlex.split(line))
    return Image(
        f"forgelm:{__version__}{target.removeprefix('forgelm')}",
        stage.all("USER")[-1],
        int(string.Template(stage.all("EXPOSE")[-1]).substitute(environment)),
        frozenset(_list(stage.all("VOLUME")[-1])),
        tuple(_list(stage.all("HEALTHCHECK")[-1].partition("CMD ")[2])),
        environment,
    )


def _list(text: str) -> list[str]:
    return [word.strip(",") for word in shlex.split(text.strip("[]"))]


def variables(command: click.Command) -> set[str]:
    """The environment variables that a command of `forgelm` reads, with those of all commands."""
    options: list[Any] = [*forgelm.params, *command.params]
    return {option.envvar for option in options if option.envvar}


SERVER = variables(serve)
REGISTRY = variables(registry)
