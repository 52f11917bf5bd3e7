"""`forgelm bench run`: workloads under loads, on any OpenAI-compatible server."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from forgelm.commands.bench_options import Counts, Rates, Server, finish, hooks, server_options, target_of
from forgelm.errors import ConfigError

if TYPE_CHECKING:
    from forgelm.bench.rows import Wanted


@click.command(cls=rich_click.RichCommand)
@server_options
@click.option("--workload", default="unique", show_default=True,
              help="Of unique, shared, conversations, mixed, long, structured, hundred; several by commas."
)  # fmt: skip
@click.option("--clients", type=Counts(), help="Closed loops: so many clients wait for their answers.  [default: 1,4]")
@click.option("--rate", type=Rates(), help="Open loops: so many requests arrive per second, whatever becomes of them.")
@click.option("--arrivals", type=click.Choice(["poisson", "constant"]), default="poisson", show_default=True,
              help="Of open loops.")  # fmt: skip
@click.option("--requests", type=click.IntRange(min=1),
              help="Of each row, one for each client at least.  [default: 16, or 4 for each client]")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Begin no request after so long, instead.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--output-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--tokens", type=click.IntRange(min=1), default=8192, show_default=True, help="Prompts of long.")
@click.option("--turns", type=click.IntRange(min=2), default=4, show_default=True, help="Of each conversation.")
@click.option("--seed", type=click.IntRange(min=0),
              help="Of the texts.  [default: the clock, so that no server knows a text from before]")  # fmt: skip
@click.option("--ceiling/--no-ceiling", default=True, show_default=True, help="Measure what the machine allows.")
@click.option("--output", type=click.Path(path_type=Path), help="Add the JSON line to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON line alone.")
def run(
    *,
    url: str,
    model: str,
    profile: str,
    settings: tuple[str, ...],
    model_file: Path | None,
    ceiling: bool,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a server under load: one that runs (--url), or one that is started for it (--profile, --model).

    Each workload is measured under each load, with a request beforehand that isn't counted. Answers are greedy. Failed
    requests are counted and end nothing; Ctrl-C prints what there is. The last line is JSON.
    """
    # Imported here: `--help` needs none of it.
    from forgelm import log
    from forgelm.bench.rows import plan_rows
    from forgelm.bench.runs import measure

    log.configure("error")
    wanted = _wanted(options)
    planned = plan_rows(wanted)  # refuses what isn't there before a server is started
    with hooks() as shown, target_of(Server(url, model, profile, settings, model_file)) as target:
        measured = measure(
            "run", target, lambda _: planned, shown, ceiling=ceiling, notes=(f"seed {wanted.sizes.seed}",)
        )
    finish(measured.result, as_json=as_json, output=output, interrupted=measured.interrupted)


def _wanted(options: dict[str, Any]) -> "Wanted":
    """What the flags say of the rows. Raises `ConfigError` for an end that is said twice."""
    from forgelm.bench.rows import Wanted
    from forgelm.bench.workloads import Sizes

    if options["seconds"] and options["requests"]:
        raise ConfigError("--seconds and --requests both say when a row ends: give one")
    return Wanted(
        workloads=tuple(dict.fromkeys(name.strip() for name in options["workload"].split(","))),
        sizes=Sizes(
            prompt_tokens=options["prompt_tokens"],
            output_tokens=options["output_tokens"],
            long_tokens=options["tokens"],
            turns=options["turns"],
            seed=int(time.time()) if options["seed"] is None else options["seed"],
        ),
        clients=options["clients"] or (),
        rates=options["rate"] or (),
        arrivals=options["arrivals"],
        requests=options["requests"] or 0,
        seconds=options["seconds"] or 0.0,
    )
