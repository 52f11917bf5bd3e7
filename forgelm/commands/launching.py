"""How `forgelm serve` comes from what was asked for to a running engine: settings, machine, fit, command."""

from pathlib import Path
from typing import Any

import msgspec

from forgelm import log, paths
from forgelm.api.served import Launch, Target
from forgelm.commands.fitting import fitted, unfitted_drafting
from forgelm.commands.offloading import present_offload
from forgelm.config import ModelSource, Profile
from forgelm.drafting import asked as speculation_asked
from forgelm.errors import InvalidRequest, ModelError, ModelNotFound
from forgelm.fit.budget import host_tier_bytes
from forgelm.gguf.readable import is_here
from forgelm.ipc.registry import Installed
from forgelm.ipc.start import Drafting, EngineConfig
from forgelm.machine import Machine, read_machine
from forgelm.registry.profiles import read_profiles
from forgelm.selection import require_usable_gpu
from forgelm.supervisor import Command


class Asked(msgspec.Struct, frozen=True):
    """What flags and variables say, whatever model is served."""

    overrides: dict[str, Any] = {}
    """`section.key` → value."""
    speculation: str | None = None
    draft_model: str | None = None
    allow_cpu: bool = False
    log_level: str = "info"


class MachineLauncher:
    """The `Launcher` of this machine."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._first: Target | None = None
        """What the server was started with."""
        self._own = ""
        """The profile that the registry has for that, where it is served by it."""

    # --- which model ---

    def first(self, profile: Profile, model: Path | None = None) -> Target:
        """What the server starts with: the profile's own model, or the file at `model`. Raises as `target` does."""
        self._first = self.target(profile, model)
        return self._first

    def first_installed(self, installed: Installed, profile: Profile | None, sizes: Profile) -> Target:
        """The same for one that the registry knows: as `profile` says, else as its own one does, else in `sizes`.

        Raises as `resolve` does.
        """
        self._first = self.target(profile or sizes)
        if profile is None:
            self._first, self._own = self._of_installed(installed), installed.profile
        else:
            _require_chat(installed)
            source = msgspec.structs.replace(profile.model, id=installed.id, file=Path(installed.path).name)
            named = msgspec.structs.replace(profile, model=source)
            target = self.target(named, Path(installed.path))
            self._first = msgspec.structs.replace(target, names=target.names | {*installed.aliases})
        return self._first

    def target(self, profile: Profile, model: Path | None = None) -> Target:
        """The profile with all that was asked for laid over it; `model` is served instead of its own.

        Raises `MachineError` for a GPU profile without a usable GPU.
        """
        profile = _with_model(profile.with_overrides(self._asked.overrides), model)
        guessed = speculation_asked(profile.speculation, self._asked.speculation, self._asked.draft_model)
        profile = msgspec.structs.replace(profile, speculation=guessed)
        profile = require_usable_gpu(
            profile,
            read_machine(),
            self._asked.allow_cpu,
            present_offload(),
        )
        return Target(profile, model or profile.model.path(), frozenset((profile.model.id, profile.name)))

    def resolve(self, name: str, installed: Installed | None) -> Target:
        """The model a client means. Raises `ModelNotFound`, and `ModelError` for one that can't be served."""
        first = self._required_first
        if name in first.names and is_here(first.model):
            # As it was asked for: with its preset, and whatever the registry knows of it.
            return first
        if installed is not None:
            return _also_called(first, installed) if self._is_first(installed) else self._of_installed(installed)
        profile = _profile_called(name)
        if profile is None or not is_here(profile.model.path()):
            raise ModelNotFound(
                f"there is no model {name[:80]!r} here: `forgelm pull` fetches models, `forgelm models` lists them",
                param="model",
            )
        return self._within(self.target(profile))

    def _is_first(self, installed: Installed) -> bool:
        """Whether it is what the server started with: one file may have several names, each with its own profile."""
        first = self._required_first
        same = first.model.resolve() == Path(installed.path).resolve()
        return same and installed.profile in (self._own, first.profile.name)

    def _of_installed(self, installed: Installed) -> Target:
        _require_chat(installed)
        path = Path(installed.path)
        machine = read_machine()
        memory = machine.memory.usable + sum(card.total for card in machine.gpus.cards)
        if installed.bytes > memory:
            raise ModelError(
                f"it has {installed.bytes / 2**30:.1f} GiB, and this machine {memory / 2**30:.1f} GiB of memory"
            )
        profile = _profile_called(installed.profile) if installed.profile else self._neutral(installed)
        if profile is None:
            raise ModelError(f"{installed.id} needs the profile {installed.profile!r}, which isn't there")
        target = self._within(self.target(profile, path))
        return _also_called(target, installed)

    def _neutral(self, installed: Installed) -> Profile:
        """The base's sizes and policies; sampling and chat settings are each model's own."""
        base = self._required_base
        context = min(base.engine.context, max(256, installed.context)) if installed.context else base.engine.context
        source = ModelSource(id=installed.id, file=Path(installed.path).name, bytes=installed.bytes)
        engine = msgspec.structs.replace(base.engine, context=context)
        return Profile(name=installed.id, model=source, engine=engine, cache=base.cache, speculation=base.speculation)

    def _within(self, target: Target) -> Target:
        """With what the server itself is set up by: one server keeps its address and limits whatever it serves."""
        base = self._required_base
        kept = {name: getattr(base, name) for name in ("server", "limits", "switching", "metrics", "logs")}
        return msgspec.structs.replace(target, profile=msgspec.structs.replace(target.profile, **kept))

    @property
    def _required_first(self) -> Target:
        assert self._first is not None, "a server has started"
        return self._first

    @property
    def _required_base(self) -> Profile:
        """Models that no profile is for are served in the sizes of what the server started with."""
        return self._required_first.profile

    # --- how ---

    def launch(self, target: Target, reserved: int = 0) -> Launch:
        """Fit it into what is free now, less `reserved` bytes.

        Raises `MachineError` when it doesn't fit and may not be made to.
        """
        machine = _less(read_machine(), reserved)
        profile = target.profile
        pinned = frozenset(self._asked.overrides)
        verdict = fitted(profile, target.model, machine, pinned)
        if verdict:
            profile, drafting, host_tier = verdict.profile, verdict.speculation.drafting, verdict.host_tier
        else:
            drafting, host_tier = unfitted_drafting(profile, target.model, machine), None
        command = engine_command(profile, target.model, machine, self._asked.log_level, host_tier, drafting=drafting)
        return Launch(target, profile, command)


def _less(machine: Machine, taken: int) -> Machine:
    """The machine with `taken` bytes less on each of its memories."""
    memory = msgspec.structs.replace(machine.memory, available=max(0, machine.memory.available - taken))
    cards = tuple(msgspec.structs.replace(card, free=max(0, card.free - taken)) for card in machine.gpus.cards)
    return msgspec.structs.replace(machine, memory=memory, gpus=msgspec.structs.replace(machine.gpus, cards=cards))


def _require_chat(installed: Installed) -> None:
    """Raise for what can't be the chat model: `ModelError`, or `InvalidRequest` for a model of another kind."""
    if installed.problem:
        raise ModelError(f"{installed.id} can't be served: {installed.problem}")
    if installed.kind != "chat":
        flag = f"--{installed.kind}-model"
        raise InvalidRequest(f"{installed.id} is for {installed.kind}: start the server with `{flag}`", param="model")


def _also_called(target: Target, installed: Installed) -> Target:
    return msgspec.structs.replace(target, names=target.names | {installed.id, *installed.aliases})


def _profile_called(name: str) -> Profile | None:
    """The profile of that name, or the one whose model has that id. Profiles that can't be read are left out."""
    profiles = read_profiles()
    return profiles.get(name) or next((each for each in profiles.values() if each.model.id == name), None)


def _with_model(profile: Profile, model: Path | None) -> Profile:
    """A model given by path is served under its own name."""
    if model is None or profile.model.id == model.stem.lower() or _same(model, profile.model.path()):
        return profile
    if Path(profile.model.file).name == model.name:
        # The same file in another place, such as the Hugging Face cache.
        return profile
    source = msgspec.structs.replace(profile.model, id=model.stem.lower(), file=model.name, sha256="", bytes=0)
    return msgspec.structs.replace(profile, model=source)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def engine_command(
    profile: Profile,
    model: Path,
    machine: Machine,
    log_level: str,
    host_tier: int | None = None,
    *,
    drafting: Drafting = Drafting(),  # noqa: B008  it is frozen
) -> Command:
    """How to start the engine process for `profile`, with `host_tier` bytes of RAM for saved prefixes."""
    threads = profile.engine.threads or machine.cores.usable
    if host_tier is None:
        host_tier = host_tier_bytes(profile.cache, machine.memory.available - model.stat().st_size)
    config = EngineConfig(
        str(model),
        profile.engine,
        threads,
        log_level,
        log.is_json(),
        profile.cache,
        host_tier,
        str(paths.cache_dir() / "prefixes"),
        drafting,
    )
    environment = {
        # A crash would otherwise run gdb on the dying process first.
        "GGML_NO_BACKTRACE": "1",
    }
    if profile.engine.omp_wait != "auto":
        environment["OMP_WAIT_POLICY"] = profile.engine.omp_wait
    return Command("forgelm.engine.main", msgspec.json.encode(config).decode(), environment)
