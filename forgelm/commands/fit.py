"""`forgelm fit`: will this profile's model fit, here or on another card, and with how much context?"""

import re
from pathlib import Path
from typing import Any

import click
import msgspec
import rich_click

from forgelm import log
from forgelm.commands.fit_report import Report, print_quants, print_report
from forgelm.commands.fitting import cards_for, instead
from forgelm.commands.offloading import present_offload
from forgelm.config import KV_TYPES, Profile
from forgelm.drafting import SPECULATION, ways
from forgelm.drafting import asked as speculation_asked
from forgelm.errors import MachineError, ModelError
from forgelm.fit.budget import DESKTOP, budget_of, imagined_card
from forgelm.fit.local import model_shape
from forgelm.fit.published import QUANTS, published_shape
from forgelm.fit.verdict import judge
from forgelm.gguf.readable import is_here
from forgelm.machine import Gpu, Gpus, Machine, Memory, read_machine
from forgelm.profiles import load_profile
from forgelm.selection import Offload, choose_profile, needs_gpu, shipped_profiles

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes of `8G`, `7.5 GiB` or `512M`; the units are binary, as cards are sold."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if not found:
        raise click.BadParameter(f"{value!r} is no size such as 8G or 512M", ctx, param)
    return int(float(found[1]) * _UNITS[found[2].upper()])


@click.command(cls=rich_click.RichCommand)
@click.option(
    "--profile", envvar="FORGELM_PROFILE", help="Profile name or TOML file; without it, the largest that fits."
)
@click.option("--preset", envvar="FORGELM_PRESET", help="The profile's sizes for short, medium or long contexts.")
@click.option("--model", type=click.Path(path_type=Path), envvar="FORGELM_MODEL", help="This GGUF instead.")
@click.option("--vram", metavar="SIZE", callback=parse_size, help="Suppose a card with this much memory, such as 8G.")
@click.option(
    "--used", metavar="SIZE", callback=parse_size, help="What others take of that card; else as much as here, or 512M."
)
@click.option("--ram", metavar="SIZE", callback=parse_size, help="Suppose this much free RAM.")
@click.option("--context", type=int, envvar="FORGELM_CONTEXT", help="KV cells in the pool, in tokens.")
@click.option("--parallel", type=int, envvar="FORGELM_PARALLEL", help="Requests that run at once.")
@click.option("--kv-type", envvar="FORGELM_KV_TYPE", help=f"Type of keys and values: {', '.join(KV_TYPES)}.")
@click.option("--n-gpu-layers", type=int, envvar="FORGELM_N_GPU_LAYERS", help="Layers on the GPU; -1 is all.")
@click.option("--device", envvar="FORGELM_DEVICE", help='"auto", "gpu", "cpu", a GPU index or uuid.')
@click.option("--speculation", type=click.Choice(SPECULATION), envvar="FORGELM_SPECULATION", help="Guess tokens ahead.")
@click.option(
    "--draft-model", envvar="FORGELM_DRAFT_MODEL", help="A small model with the same vocabulary that guesses."
)
@click.option("--quants", is_flag=True, help="Compare the model's common quantizations instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def fit(
    *,
    profile: str | None,
    preset: str | None,
    model: Path | None,
    vram: int | None,
    used: int | None,
    ram: int | None,
    speculation: str | None,
    draft_model: str | None,
    quants: bool,
    as_json: bool,
    **overrides: Any,
) -> None:
    """Say whether a model fits: what it takes of GPU and RAM, and the longest context that is left.

    Works for a model that isn't downloaded yet, and with --vram for a card that isn't here. What doesn't fit as asked
    is stepped down as `forgelm serve` would do it; what you set with a flag stays. Exits with 1 if it doesn't fit.
    """
    log.configure("error")  # a build with modules announces them when it is loaded
    machine = _supposed(read_machine(), vram, used, ram)
    wanted = load_profile(profile) if profile else _largest(machine, vram)
    wanted = (wanted.with_preset(preset) if preset else wanted).with_overrides(_keyed(overrides))
    guessed = speculation_asked(wanted.speculation, speculation, draft_model)
    wanted = msgspec.structs.replace(wanted, speculation=guessed)
    pinned = frozenset(key for key, value in _keyed(overrides).items() if value is not None)
    if model is not None and not is_here(model):
        raise ModelError(f"no model file at {model}")
    path = model or wanted.model.path()
    cards = _cards(wanted, machine, supposed=vram is not None)
    budget = budget_of(machine.memory, cards)
    if quants:
        known = [(quant, published_shape(wanted.model, quant)) for quant in QUANTS]
        print_quants(wanted, [(quant, shape) for quant, shape in known if shape], budget)
        return
    shape = model_shape(wanted, path)
    report = Report(wanted, path, shape, budget, ways(wanted, path, shape, on_gpu=bool(cards)))
    try:
        verdict = judge(wanted, shape, budget, pinned=pinned, ways=report.ways)
    except MachineError as error:
        print_report(report, None, as_json=as_json)
        raise MachineError(f"{error}{instead(wanted, machine, _offload(vram))}") from None
    print_report(report, verdict, as_json=as_json)


def _keyed(overrides: dict[str, Any]) -> dict[str, Any]:
    return {f"engine.{name}": value for name, value in overrides.items()}


def _supposed(machine: Machine, vram: int | None, used: int | None, ram: int | None) -> Machine:
    """This machine with a made-up card or RAM."""
    if used is None:
        used = max((card.total - card.free for card in machine.gpus.cards), default=DESKTOP)
    if ram is not None:
        machine = msgspec.structs.replace(machine, memory=Memory(total=ram, available=ram, limit=None))
    if vram is not None:
        machine = msgspec.structs.replace(machine, gpus=Gpus((imagined_card(vram, used),)))
    return machine


def _largest(machine: Machine, vram: int | None) -> Profile:
    return choose_profile(machine, shipped_profiles(), _offload(vram)).profile


def _offload(vram: int | None) -> Offload:
    """What llama.cpp can do: with a made-up card, whatever it takes to use it."""
    return present_offload() if vram is None else Offload(usable=True)


def _cards(profile: Profile, machine: Machine, *, supposed: bool) -> tuple[Gpu, ...]:
    """The cards it would run on. Raises `MachineError` when the profile wants one and none can be asked."""
    if supposed and profile.engine.device != "cpu" and profile.engine.n_gpu_layers != 0:
        return machine.gpus.cards
    cards = cards_for(profile, machine)
    if cards is None or (not cards and needs_gpu(profile.engine)):
        raise MachineError(
            f"profile {profile.name} needs a GPU whose memory can be read, and there is none here: "
            "name its size with `--vram 8G`, or look at the CPU with `--device cpu`"
        )
    return cards
