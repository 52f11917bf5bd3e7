"""`forgelm ps`: what a running server does: its models, their memory, its load and its open requests.

It talks HTTP to a server that runs already, as `forgelm chat` does.
"""

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec
import rich_click

from forgelm.commands.http import connect, failures, local_url, own_key, refusal
from forgelm.commands.terminal import one_line
from forgelm.config import Server
from forgelm.errors import ForgeError
from forgelm.ipc.status import GpuStatus, ModelStatus, RequestStatus, ServerStatus
from forgelm.profiles import load_profile

if TYPE_CHECKING:
    from rich.table import Table

ANSWER_SECONDS = 10.0


@click.command(cls=rich_click.RichCommand)
@click.option("--url", default="", envvar="FORGELM_URL", help="The server; without it the one on this machine.")
@click.option("--api-key", default="", envvar="FORGELM_API_KEY", help="Key, where the server wants one.")
@click.option("--json", "as_json", is_flag=True, help="Print what `GET /status` answers.")
def ps(url: str, api_key: str, *, as_json: bool) -> None:
    """Show what a running server does: models, memory, load, open requests.

    Without --url it asks this machine's, at FORGELM_HOST and FORGELM_PORT or where FORGELM_PROFILE says, else at 8080.
    """
    url = _root(url or _own_url())
    body = _fetch(url, api_key.split(",", maxsplit=1)[0].strip() or own_key())
    status = _decoded(body, url)
    if as_json:
        click.echo(body)
    else:
        _print(status)


# --- asking ---


def _own_url() -> str:
    """Where a server of this machine's listens, as far as variables tell."""
    profile = os.environ.get("FORGELM_PROFILE")
    server = load_profile(profile).server if profile else Server()
    return local_url(os.environ.get("FORGELM_HOST") or server.host, os.environ.get("FORGELM_PORT") or server.port)


def _root(url: str) -> str:
    """The server's own address, where its API's was given."""
    return url.rstrip("/").removesuffix("/v1")


def _fetch(url: str, key: str) -> str:
    """What `GET /status` answers. Raises `ForgeError` in one line."""
    with connect(url, key, ANSWER_SECONDS) as client, failures(url):
        answer = _answer(client, url)
    if answer.status_code == 404:
        raise ForgeError(f"{url} is no ForgeLM server: it has no /status")
    if answer.status_code != 200:
        raise ForgeError(refusal(answer))
    text: str = answer.text
    return text


def _answer(client: Any, url: str) -> Any:
    """Its response, read in full. Raises `ForgeError` where that takes too long in all."""
    import httpx

    end, pieces = time.monotonic() + ANSWER_SECONDS, []
    with client.stream("GET", "/status") as answer:
        for piece in answer.iter_bytes():
            pieces.append(piece)
            # The client's own limit is for each piece.
            if time.monotonic() > end:
                raise ForgeError(f"{url} doesn't answer in time")
        return httpx.Response(answer.status_code, content=b"".join(pieces), request=answer.request)


def _decoded(body: str, url: str) -> ServerStatus:
    try:
        return msgspec.json.decode(body, type=ServerStatus)
    except msgspec.DecodeError as error:
        raise ForgeError(f"{url} is no ForgeLM server of this version: {error}") from None


# --- showing ---


def _print(status: ServerStatus) -> None:
    from forgelm.commands.tables import console

    out = console()
    for line in _headlines(status):
        out.print(line)
    out.print()
    out.print(_models(status))
    if status.processes:
        out.print()
        out.print(_processes(status))
    if status.gpus:
        out.print()
        out.print(_gpus(status.gpus))
    if status.requests:
        out.print()
        out.print(_requests(status.requests))


def _headlines(status: ServerStatus) -> Iterator[str]:
    percent = f" {status.percent:.0f} %" if status.percent is not None else ""
    reason = f": {one_line(status.reason)}" if status.reason else ""
    restarts = f", engine restarted {status.restarts} times" if status.restarts else ""
    since = _span(time.time() - status.started_at)
    yield f"ForgeLM {one_line(status.version)}, {one_line(status.state)}{percent}{reason}, up {since}{restarts}"
    yield (
        f"{status.running} running, {status.waiting} waiting; prefill {status.prefill_tokens_per_second:,.1f} tok/s, "
        f"decode {status.decode_tokens_per_second:,.1f} tok/s"
    )
    if status.cache is not None:
        cache = status.cache
        share = f" ({100 * cache.used / cache.cells:.0f} %)" if cache.cells else ""
        yield (
            f"KV: {cache.used:,} of {cache.cells:,} cells used{share}, {cache.cached:,} kept of finished requests; "
            f"{_size(cache.host_bytes)} in RAM"
        )


def _models(status: ServerStatus) -> "Table":
    from forgelm.commands.tables import table

    rows = table()
    for name in ("model", "kind", "state", "quant"):
        rows.add_column(name, overflow="fold")
    rows.add_column("context", justify="right", no_wrap=True)
    for name in ("KV", "device", "since"):
        rows.add_column(name, overflow="fold")
    for model in status.models:
        rows.add_row(*map(one_line, _model_cells(model)))
    return rows


def _model_cells(model: ModelStatus) -> tuple[str, ...]:
    context = f"{model.context:,}" if model.context else ""
    since = _span(time.time() - model.loaded_at) if model.loaded_at else ""
    return model.id, model.kind, model.state, model.quant, context, model.kv_type, ", ".join(model.devices), since


def _processes(status: ServerStatus) -> "Table":
    from forgelm.commands.tables import table

    rows = table()
    rows.add_column("process", no_wrap=True)
    for name in ("pid", "memory", "CPU time"):
        rows.add_column(name, justify="right", no_wrap=True)
    for each in status.processes:
        rows.add_row(each.role, str(each.pid), _size(each.rss_bytes), _span(each.cpu_seconds))
    return rows


def _gpus(gpus: tuple[GpuStatus, ...]) -> "Table":
    from forgelm.commands.tables import table

    rows = table()
    rows.add_column("GPU", overflow="fold")
    for name in ("memory", "busy", "power", "temperature"):
        rows.add_column(name, justify="right", no_wrap=True)
    for each in gpus:
        rows.add_row(
            f"{each.index} {one_line(each.name)}",
            f"{_size(each.memory_used_bytes)} of {_size(each.memory_total_bytes)}",
            "" if each.utilisation is None else f"{100 * each.utilisation:.0f} %",
            "" if each.power_watts is None else f"{each.power_watts:.0f} W",
            "" if each.temperature_celsius is None else f"{each.temperature_celsius:.0f} °C",
        )
    return rows


def _requests(requests: tuple[RequestStatus, ...]) -> "Table":
    from forgelm.commands.tables import table

    rows = table()
    for name in ("request", "model", "stage"):
        rows.add_column(name, overflow="fold")
    for name in ("prompt", "cached", "generated", "seconds"):
        rows.add_column(name, justify="right", no_wrap=True)
    for each in requests:
        counts = (each.prompt_tokens, each.cached_tokens, each.generated_tokens)
        rows.add_row(
            *(one_line(each.id), one_line(each.model), each.stage),
            *(f"{count:,}" for count in counts),
            f"{each.seconds:.1f}",
        )
    return rows


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _span(seconds: float) -> str:
    """A time that has passed, in its two largest units."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole % 86400 // 3600, whole % 3600 // 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
