"""Which profile a machine gets, and whether a profile that wants a GPU may run here.

Decisions on facts read elsewhere. Whether a model fits is computed from its published shape, as `forgelm fit` does.

What the installed llama.cpp can do with GPUs comes with every question, as `Offload`.
"""

from collections.abc import Mapping

import msgspec

from forgelm import paths
from forgelm.config import Engine, Profile
from forgelm.errors import ConfigError, MachineError
from forgelm.fit.budget import budget_of
from forgelm.fit.need import need
from forgelm.fit.published import published_shape
from forgelm.machine import Gpu, Machine
from forgelm.profiles import read_profile

SMALL_RAM = 4_000_000_000
"""Decimal on purpose: a machine sold with 4 GB shows a little less than 4 GiB, and is meant to count."""

DRIVER_FLOORS = {12: 525, 13: 580}
"""CUDA major version → oldest driver branch that runs it."""


class Offload(msgspec.Struct, frozen=True):
    """What the installed llama.cpp can do with GPUs."""

    usable: bool
    """It sees a device it can use, of any make."""
    cuda_major: int = 0
    """The CUDA version it was built for, 0 without CUDA; needed because a driver that is too old hides the device just
    as a build without CUDA does."""
    oldest: tuple[int, int] | None = None
    """The lowest compute capability that its CUDA code runs on; None when unknown."""
    refused: str = ""
    """Why its CUDA module can't be loaded here."""


class Choice(msgspec.Struct, frozen=True):
    """A profile and one line that says why it and no other."""

    profile: Profile
    why: str


def shipped_profiles() -> dict[str, Profile]:
    """Name → profile of everything that comes with ForgeLM. Raises `ConfigError` when a file is broken."""
    return {path.stem: read_profile(path) for path in sorted(paths.shipped_profiles_dir().glob("*.toml"))}


def needs_gpu(engine: Engine) -> bool:
    """Whether the profile insists on a GPU, rather than using one where there is one."""
    return engine.device not in ("auto", "cpu") and engine.n_gpu_layers != 0


def choose_profile(
    machine: Machine, profiles: Mapping[str, Profile], offload: Offload, *, allow_cpu: bool = True
) -> Choice:
    """What `forgelm serve` serves when it isn't told: the largest shipped model this machine holds.

    Raises `ConfigError` when the fallback profiles are missing, and `MachineError` for a card that this build was made
    for and can't use, unless `allow_cpu`: who has one doesn't mean to serve from the CPU.
    """
    problem = gpu_problem(machine, offload)
    if problem and not allow_cpu and is_made_for(machine, offload):
        raise MachineError(
            f"{problem}. Go on with `--profile cpu_fallback`, or add `--allow-cpu` to take what the CPU can serve"
        )
    if not problem:
        fitting = _largest_that_fits(machine, profiles)
        if fitting is not None:
            return fitting
        problem = _too_small(machine)
    return _fallback(machine, profiles, problem)


def require_usable_gpu(
    profile: Profile,
    machine: Machine,
    allow_cpu: bool,
    offload: Offload,
) -> Profile:
    """The profile to serve: as it is, or moved to the CPU where it lacks its GPU and `allow_cpu` says so.

    Raises `MachineError` with the reason and the two ways on.
    """
    if not needs_gpu(profile.engine):
        return profile
    problem = gpu_problem(machine, offload) or _missing_cards(profile.engine, machine)
    if not problem:
        return profile
    if allow_cpu:
        return profile.with_overrides({"engine.device": "cpu", "engine.n_gpu_layers": 0})
    raise MachineError(
        f"profile {profile.name} needs a GPU, and {problem}. "
        "Go on with `--profile cpu_fallback`, or add `--allow-cpu` to run this one slowly on the CPU"
    )


def is_made_for(machine: Machine, offload: Offload) -> bool:
    """Whether this build has code for NVIDIA cards and the machine has one."""
    return bool(machine.gpus.cards and (offload.cuda_major or offload.refused))


def gpu_problem(machine: Machine, offload: Offload) -> str:
    """Why llama.cpp can't use a GPU here, in a clause; "" when it can."""
    if offload.usable:
        return _too_old(machine, offload)
    if not machine.gpus.cards:
        return f"this machine has none ({machine.gpus.reason})"
    card, cuda_major = machine.gpus.cards[0], offload.cuda_major
    if offload.refused:
        return f"llama.cpp's CUDA module can't be loaded, so it can't use the {card.name}: {offload.refused}"
    if not cuda_major:
        return f"the installed llama.cpp is built without CUDA, so it can't use the {card.name}"
    floor = DRIVER_FLOORS.get(cuda_major, 0)
    if _branch(card.driver) < floor:
        return f"the NVIDIA driver {card.driver} is too old: CUDA {cuda_major} needs {floor} or newer"
    return f"llama.cpp's CUDA {cuda_major} doesn't start on the {card.name} (driver {card.driver})"


def _too_old(machine: Machine, offload: Offload) -> str:
    """Why none of the cards runs the code that was built; llama.cpp would find out at its first step, and abort."""
    oldest = offload.oldest
    if oldest is None or not machine.gpus.cards or any(card.capability >= oldest for card in machine.gpus.cards):
        return ""
    card = machine.gpus.cards[0]
    return (
        f"the {card.name} has compute capability {_dotted(card.capability)}, and this llama.cpp was built for "
        f"{_dotted(oldest)} and newer (CMAKE_CUDA_ARCHITECTURES)"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def gpus_for(engine: Engine, machine: Machine) -> tuple[Gpu, ...]:
    """The cards the profile runs on: none for "cpu", the emptiest for "auto" and "gpu", else the named ones.

    Raises `MachineError` when a named card isn't there.
    """
    if engine.device == "cpu" or engine.n_gpu_layers == 0:
        return ()
    if engine.device in ("auto", "gpu"):
        return tuple(sorted(machine.gpus.cards, key=lambda card: card.free)[-1:])
    missing = _missing_cards(engine, machine)
    if missing:
        raise MachineError(f"this profile's device can't be used: {missing}")
    return tuple(card for name in _named(engine) for card in machine.gpus.cards if _is(card, name))


def _branch(driver: str) -> int:
    branch = driver.partition(".")[0]
    return int(branch) if branch.isdigit() else 0


def _missing_cards(engine: Engine, machine: Machine) -> str:
    missing = [name for name in _named(engine) if not any(_is(card, name) for card in machine.gpus.cards)]
    if not missing:
        return ""
    present = ", ".join(f"{card.index} ({card.name})" for card in machine.gpus.cards) or "none"
    return f"there is no GPU {' and no GPU '.join(missing)}; the driver lists: {present}"


def _named(engine: Engine) -> tuple[str, ...]:
    if isinstance(engine.device, tuple):
        return engine.device
    return () if engine.device in ("auto", "gpu", "cpu") else (engine.device,)


def _is(card: Gpu, name: str) -> bool:
    return name == str(card.index) or (name.startswith("GPU-") and card.uuid.startswith(name))


def _largest_that_fits(machine: Machine, profiles: Mapping[str, Profile]) -> Choice | None:
    card = max(machine.gpus.cards, key=lambda card: card.free, default=None)
    if card is None:
        return None
    budget = budget_of(machine.memory, (card,))
    candidates = [profile for profile in profiles.values() if needs_gpu(profile.engine)]
    for profile in sorted(candidates, key=lambda profile: profile.model.bytes, reverse=True):
        shape = published_shape(profile.model)
        taken = None if shape is None else need(shape, profile.engine, profile.cache, cards=1)
        if taken is not None and budget.holds(taken):
            why = f"the {card.name} has {_gib(card.free)} free and it takes about {_gib(taken.gpu)}"
            return Choice(profile, why)
    return None


def _too_small(machine: Machine) -> str:
    card = max(machine.gpus.cards, key=lambda card: card.free, default=None)
    if card is None:  # a card NVML doesn't know: its memory can't be read, so nothing is promised
        return "its GPU's free memory can't be read"
    free = f"{_gib(card.free)} free on the {card.name}, {_gib(machine.memory.available)} in RAM"
    return f"no GPU profile fits into what there is: {free}"


def _fallback(machine: Machine, profiles: Mapping[str, Profile], problem: str) -> Choice:
    small = machine.memory.usable < SMALL_RAM
    name = "cpu_fallback_small" if small else "cpu_fallback"
    if name not in profiles:
        raise ConfigError(f"the shipped profile {name!r} is missing; choose one with --profile")
    why = f"no usable GPU: {problem}"
    if small:
        why += f"; and only {_gib(machine.memory.usable)} of RAM"
    return Choice(profiles[name], why)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
