"""The fit at the start of `forgelm serve`: before the engine loads anything, does it fit, and in which sizes?

A fit that can't be computed never stops a start; it is said in the log, and the engine tries.
"""

from pathlib import Path
from typing import Any

from forgelm import log
from forgelm.commands.offloading import present_offload
from forgelm.config import Profile
from forgelm.drafting import ways
from forgelm.errors import MachineError, ModelError
from forgelm.fit.budget import budget_of
from forgelm.fit.local import model_shape
from forgelm.fit.verdict import Verdict, judge
from forgelm.ipc.start import Drafting
from forgelm.llama.lib import build_info
from forgelm.machine import Gpu, Machine
from forgelm.selection import Offload, choose_profile, gpus_for, needs_gpu, shipped_profiles


def fitted(profile: Profile, path: Path, machine: Machine, pinned: frozenset[str] = frozenset()) -> Verdict | None:
    """How `profile` will run here; None when that can't be told.

    Raises `MachineError` when it doesn't fit, saying what would, and `ModelError` for a drafter it can't have.
    """
    if profile.engine.fit == "off":
        return None
    logger = log.get("fit")
    try:
        shape = model_shape(profile, path)
        cards = cards_for(profile, machine)
    except ModelError as error:
        logger.warning("memory isn't checked", reason=str(error))
        return None
    if cards is None:
        logger.warning("memory isn't checked", reason="the GPU's free memory can't be read")
        return None
    possible = ways(profile, path, shape, on_gpu=bool(cards))
    try:
        verdict = judge(profile, shape, budget_of(machine.memory, cards), pinned=pinned, ways=possible)
    except MachineError as error:
        other = instead(profile, machine, present_offload())
        raise MachineError(f"{error}{other}. `--fit off` tries all the same") from None
    _say(verdict, logger)
    return verdict


def unfitted_drafting(profile: Profile, path: Path, machine: Machine) -> Drafting:
    """How tokens are guessed ahead where memory isn't checked: as asked where that is what was asked for, else without
    what takes memory unless a drafter was named. Raises `ModelError` for one that this model can't have."""
    cards = cards_for(profile, machine)
    try:
        shape = model_shape(profile, path)
    except ModelError:
        shape = None
    possible = ways(profile, path, shape, on_gpu=cards != ())
    unasked = profile.engine.fit != "off" or shape is None
    return (possible.last if unasked and not possible.demanded else possible.first).drafting


def _say(verdict: Verdict, logger: Any) -> None:
    for part in verdict.need.parts:
        logger.debug("memory", part=part.name, gpu_mib=part.gpu >> 20, ram_mib=part.host >> 20, note=part.note)
    guessing = " and ".join(verdict.speculation.drafting.drafters) or "off"
    if verdict.steps:
        steps = ", ".join(verdict.steps)
        logger.warning("memory is short, so this was given up", steps=steps, now=verdict.summary, speculation=guessing)
    else:
        logger.info("memory", needed=verdict.summary, speculation=guessing)


def cards_for(profile: Profile, machine: Machine) -> tuple[Gpu, ...] | None:
    """The GPUs the layers go on, empty for the CPU; None for a card whose memory NVML can't tell.

    Raises `MachineError` when a named card isn't there.
    """
    engine = profile.engine
    on_cpu = engine.device == "cpu" or engine.n_gpu_layers == 0
    if on_cpu or not (build_info().gpu_offload or needs_gpu(engine)):
        return ()
    return gpus_for(engine, machine) or None


def instead(profile: Profile, machine: Machine, offload: Offload) -> str:
    """A clause naming the profile that this machine would get, if that is another one and a smaller one."""
    choice = choose_profile(machine, shipped_profiles(), offload).profile
    smaller = not profile.model.bytes or choice.model.bytes < profile.model.bytes
    return f"; or take `--profile {choice.name}`" if smaller and choice.name != profile.name else ""
