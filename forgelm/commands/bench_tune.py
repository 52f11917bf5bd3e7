"""`forgelm bench tune`: search for settings that are better on this machine, and write them as a profile."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import rich_click

from forgelm.commands.terminal import coloured
from forgelm.config import Profile
from forgelm.errors import MachineError, ModelError
from forgelm.profiles import load_profile

if TYPE_CHECKING:
    from forgelm.bench.tuning_run import Asked, Found


@click.command(cls=rich_click.RichCommand)
@click.option("--profile", default="starter", show_default=True, help="Profile name or TOML file: the default to beat.")
@click.option("--model", "models", type=click.Path(path_type=Path), multiple=True,
              help="Serve this GGUF in the profile's settings; several are one model's quantizations, the first one "
              "is the default.")  # fmt: skip
@click.option("--for", "merits", default="decode,ttft,throughput", show_default=True,
              help="Figures of merit: decode, ttft, throughput, itl, memory, context, quality; decode=2 weighs twice."
)  # fmt: skip
@click.option("--search", type=click.Choice(["coordinate", "grid"]), default="coordinate", show_default=True,
              help="One axis at a time, keeping the best, or all combinations.")  # fmt: skip
@click.option("--axes", default="", help="Search these alone, separated by commas: n_ubatch, kv_type, ….")
@click.option("--axis", "given", multiple=True, metavar="KEY=V,V…", help="An axis's values: engine.n_ubatch=128,256.")
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=0.0, help="The most that all of it takes; 0: no limit."
)
@click.option("--pairs", type=click.IntRange(min=6), default=9, show_default=True,
              help="Of each candidate with the best so far; half as many more with the default at the end."
)  # fmt: skip
@click.option("--clients", type=click.IntRange(min=1), default=8, show_default=True, help="Of throughput and itl.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--output-tokens", type=click.IntRange(min=2), default=64, show_default=True)
@click.option("--ttft-tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="The prompt of ttft.")
@click.option("--max-quality-loss", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="PERCENT",
              help="The most that perplexity may grow beside the default's.")  # fmt: skip
@click.option("--text", type=click.Path(path_type=Path), help="For quality; without it, Python's language reference.")
@click.option("--quality-tokens", type=click.IntRange(min=256), default=2048, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="The profile's file; else PROFILE_tuned among yours.")
@click.option(
    "--state", type=click.Path(path_type=Path), help="Keep there what was measured; else where state is kept."
)
@click.option("--fresh", is_flag=True, help="Forget what was measured before.")
@click.option("--ceiling/--no-ceiling", default=True, show_default=True, help="Measure what the machine allows.")
@click.option("--allow-cpu", is_flag=True, help="Tune a GPU profile on the CPU if need be.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON line alone.")
def tune(
    *,
    profile: str,
    models: tuple[Path, ...],
    output: Path | None,
    state: Path | None,
    fresh: bool,
    allow_cpu: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Search for settings that serve better here than a profile's own, and write them as a profile.

    A candidate is compared with the best so far by measuring both in turn, and taken only when it is better beyond the
    noise and worse on nothing that was asked for. The winner must beat the default once more at the end; otherwise the
    default is written. Stopped, or killed, the same command goes on where it was. The last line is JSON. Nothing else
    should be running meanwhile.
    """
    # Imported here: `--help` needs none of it.
    from forgelm import log, paths
    from forgelm.bench.result import to_line
    from forgelm.bench.tuning_profile import require_writable
    from forgelm.bench.tuning_run import make_plan, run
    from forgelm.commands.bench_progress import search_progress

    log.configure("error")
    base = load_profile(profile)
    asked = _asked(options)
    target = output or paths.user_profiles_dir() / f"{base.name}_tuned.toml"
    require_writable(target)
    files = models or (base.model.path(),)
    placed = _place(base, files, allow_cpu=allow_cpu)
    plan = make_plan(placed.base, files, asked, placed.check, on_gpu=placed.on_gpu)
    record = state or paths.state_dir() / "bench" / f"tune-{base.name}.jsonl"
    with search_progress(plan.goal) as watch:
        found = run(plan, record, target.stem, watch, fresh=fresh)
    _write(target, found.profile)
    if not as_json:
        _show(found, (*placed.notes, f"profile: {target}"))
    click.echo(to_line(found.result))


def _asked(options: dict[str, Any]) -> "Asked":
    """What the flags say of the search. Raises `ConfigError` for figures that are none."""
    from forgelm.bench.merits import Effort, parse_merits
    from forgelm.bench.tuning_run import Asked

    return Asked(
        merits=parse_merits(options["merits"]),
        method=options["search"],
        axes=tuple(filter(None, options["axes"].replace(" ", "").split(","))),
        given=options["given"],
        pairs=options["pairs"],
        effort=Effort(
            clients=options["clients"],
            prompt_tokens=options["prompt_tokens"],
            output_tokens=options["output_tokens"],
            ttft_tokens=options["ttft_tokens"],
        ),
        max_quality_loss=options["max_quality_loss"] / 100,
        quality_tokens=options["quality_tokens"],
        text=options["text"],
        seconds=60 * options["minutes"],
        ceiling=options["ceiling"],
    )


class Placed(NamedTuple):
    """The default as it runs here."""

    base: Profile
    check: Callable[[Profile, Path], None]
    on_gpu: bool
    notes: tuple[str, ...]


def _place(base: Profile, files: tuple[Path, ...], *, allow_cpu: bool) -> Placed:
    """Raises `ModelError` for a file that isn't there, `MachineError` where the profile can't run."""
    from forgelm.commands.fitting import cards_for, fitted
    from forgelm.commands.offloading import present_offload
    from forgelm.machine import read_machine
    from forgelm.selection import require_usable_gpu

    for path in files:
        if not path.is_file():
            hint = f"; see `forgelm pull {base.name}`" if path == base.model.path() else ""
            raise ModelError(f"no model file at {path}{hint}")
    # Before any server of ours takes memory.
    machine = read_machine()
    usable = require_usable_gpu(base, machine, allow_cpu, present_offload())

    def check(profile: Profile, path: Path) -> None:
        fitted(profile, path, machine)

    try:
        verdict = fitted(usable, files[0], machine)
    except MachineError as error:
        raise MachineError(f"the default can't be tuned: {error}") from None
    on_gpu = cards_for(usable, machine) != ()
    if verdict is None or not verdict.steps:
        return Placed(usable, check, on_gpu, ())
    note = f"memory is short, so the default has less than its profile says: {', '.join(verdict.steps)}"
    return Placed(verdict.profile, check, on_gpu, (note,))


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MachineError(f"the profile can't be written to {target}: {error.strerror}") from None


def _show(found: "Found", notes: tuple[str, ...]) -> None:
    from forgelm.bench.tuning_table import print_result

    print_result(found.result, colour=coloured(sys.stdout))
    for note in notes:
        click.echo(note)
