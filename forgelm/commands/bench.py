"""`forgelm bench`: measurements of this machine and model."""

import sys
from pathlib import Path

import click
import rich_click

from forgelm.commands.bench_replay import record, replay
from forgelm.commands.bench_report import report
from forgelm.commands.bench_run import run
from forgelm.commands.bench_table import table
from forgelm.commands.bench_tune import tune
from forgelm.commands.terminal import coloured
from forgelm.config import KV_TYPES, Profile
from forgelm.errors import ModelError
from forgelm.ipc.start import EngineConfig
from forgelm.machine import read_machine
from forgelm.profiles import load_profile
from forgelm.selection import require_usable_gpu

SHORTEST = 256
"""llama.cpp's smallest context."""


class Names(click.ParamType[tuple[str, ...]]):
    """Some of `known`, separated by commas."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for name in found:
            if name not in self._known:
                self.fail(f"{name!r} is none of {', '.join(self._known)}", param, ctx)
        return found


class Lengths(click.ParamType[tuple[int, ...]]):
    """Numbers of tokens, separated by commas; in ascending order, each once."""

    name = "lengths"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = [part.strip().replace("_", "") for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) >= SHORTEST for part in parts):
            self.fail(f"{value!r} isn't a list of numbers from {SHORTEST} up", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


@click.group(cls=rich_click.RichGroup)
def bench() -> None:
    """Measure this machine with a model. Nothing else should be running meanwhile."""


bench.add_command(run)
bench.add_command(record)
bench.add_command(replay)
bench.add_command(tune)
bench.add_command(report)
bench.add_command(table)


@bench.command(cls=rich_click.RichCommand)
@click.option("--profile", default="starter", show_default=True, help="Profile name or TOML file.")
@click.option("--model", type=click.Path(path_type=Path), help="Measure this GGUF in the profile's settings instead.")
@click.option("--text", type=click.Path(path_type=Path), help="UTF-8 text; without it, Python's language reference.")
@click.option("--tokens", type=Lengths(), default="2048,32768,65536", show_default=True, help="Context lengths.")
@click.option("--kv", type=Names(KV_TYPES), default="f16,q8_0,q4_0", show_default=True, help="KV types; f16 always.")
@click.option("--minutes", type=click.FloatRange(min=0), default=6.0, show_default=True,
              help="A row whose text takes longer shows its memory alone; 0: all rows over 2,048.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 counts the usable cores.")
@click.option("--allow-cpu", is_flag=True, help="Measure a GPU profile on the CPU if need be.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON line alone.")
def kv(
    *,
    profile: str,
    model: Path | None,
    text: Path | None,
    tokens: tuple[int, ...],
    kv: tuple[str, ...],
    minutes: float,
    threads: int,
    allow_cpu: bool,
    as_json: bool,
) -> None:
    """Compare KV types with f16: quality, speed, memory and recall.

    Quality (KL divergence, same top-1, perplexity) is measured on a text of the first length; the rest at each length,
    every row in a process of its own. A profile's presets are rows too. The last line is JSON.
    """
    # Imported here: `--help` needs neither llama.cpp nor NumPy.
    from forgelm import log
    from forgelm.bench.kv import REFERENCE, Job, run, to_json
    from forgelm.bench.prose import default_prose, read_prose
    from forgelm.bench.table import print_table

    log.configure("error")
    settled = load_profile(profile).with_overrides({"engine.threads": threads or None})
    kv_types = tuple(dict.fromkeys((REFERENCE, *kv)))
    for kv_type in kv_types:
        settled.with_overrides({"engine.kv_type": kv_type})  # refuses what can't run, before anything is measured
    job = Job(
        config=_config(settled, model, allow_cpu=allow_cpu),
        prose=read_prose(text) if text else default_prose(),
        tokens=tokens,
        kv_types=kv_types,
        limit_seconds=60 * minutes,
        # Another model's sizes aren't chosen for it.
        presets={} if model else {str(name): preset for name, preset in settled.presets.items()},
    )
    report = run(job, lambda line: click.echo(line, err=True))
    if not as_json:
        print_table(report, colour=coloured(sys.stdout))
    click.echo(to_json(report))


def _config(profile: Profile, model: Path | None, *, allow_cpu: bool) -> EngineConfig:
    """What the engine would get. Raises `ModelError` without a file, `MachineError` without the profile's GPU."""
    from forgelm.commands.offloading import present_offload

    path = model or profile.model.path()
    if not path.is_file():
        raise ModelError(f"no model file at {path}" + ("" if model else f"; see `forgelm pull {profile.name}`"))
    machine = read_machine()
    placed = require_usable_gpu(profile, machine, allow_cpu, present_offload())
    return EngineConfig(str(path.resolve()), placed.engine, placed.engine.threads or machine.cores.usable)
