"""`forgelm bench table`: README's table, measured on this machine in one command."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich_click

from forgelm.config import Profile
from forgelm.errors import ConfigError, ForgeError
from forgelm.profiles import load_profile

if TYPE_CHECKING:
    from forgelm.bench.tables import Measured


@click.command(cls=rich_click.RichCommand)
@click.option("--profiles", default="turbo_4b,balanced_9b", show_default=True, help="Names or files, by commas.")
@click.option("--write", type=click.Path(path_type=Path),
              help="Replace the block between <!-- table --> and <!-- /table --> in this file.")  # fmt: skip
@click.option("--allow-cpu", is_flag=True, help="Measure a GPU profile on the CPU if need be.")
def table(*, profiles: str, write: Path | None, allow_cpu: bool) -> None:
    """Measure profiles and print their table: tokens per second of one and eight clients, TTFT, VRAM and RAM.

    A profile whose model or GPU isn't here has a row that says so. After the table comes one JSON line for each that
    was measured. Nothing else should be running meanwhile.
    """
    # Imported here: `--help` needs none of it.
    from forgelm import log
    from forgelm.bench.result import to_line
    from forgelm.bench.tables import markdown, replace_block, table_rows

    log.configure("error")
    wanted = [load_profile(name.strip()) for name in profiles.split(",") if name.strip()]
    if not wanted:
        raise ConfigError("no profile is named")
    if write is not None:
        replace_block(_read(write), [])  # refuses what has no block before anything is measured
    measured = [_measured(profile, allow_cpu=allow_cpu) for profile in wanted]
    rows = table_rows(measured)
    click.echo(markdown(rows))
    for each in measured:
        if each.problem:
            click.echo(f"{each.profile.name}: not measured: {each.problem}", err=True)
    if write is not None:
        _write(write, replace_block(_read(write), rows))
    for each in measured:
        if each.result is not None:
            click.echo(to_line(each.result))


def _measured(profile: Profile, *, allow_cpu: bool) -> "Measured":
    from forgelm.bench.tables import Measured, measure
    from forgelm.commands.fitting import cards_for
    from forgelm.commands.offloading import present_offload
    from forgelm.machine import read_machine
    from forgelm.selection import require_usable_gpu

    path = profile.model.path()
    if not path.is_file():
        return Measured(profile, None, f"its model isn't here: `forgelm pull {profile.name}` fetches it")
    machine = read_machine()
    try:
        placed = require_usable_gpu(profile, machine, allow_cpu, present_offload())
        on_gpu = cards_for(placed, machine) != ()
    except ForgeError as error:
        return Measured(profile, None, str(error))
    return measure(placed, on_gpu=on_gpu, say=lambda line: click.echo(line, err=True))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from None
