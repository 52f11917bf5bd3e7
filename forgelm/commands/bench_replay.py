"""`forgelm bench record` and `replay`: a real load, written down and repeated."""

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich_click

from forgelm.commands.bench_options import DEFAULT_URL, Server, finish, hooks, server_options, target_of
from forgelm.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from forgelm.bench.rows import Planned
    from forgelm.bench.terms import Terms


@click.command(cls=rich_click.RichCommand)
@click.argument("trace", type=click.Path(path_type=Path))
@server_options
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="How many times as fast requests arrive.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0),
              help="Of the made-up words.  [default: the clock, so that no server knows them from before]")  # fmt: skip
@click.option("--ceiling/--no-ceiling", default=True, show_default=True, help="Measure what the machine allows.")
@click.option("--output", type=click.Path(path_type=Path), help="Add the JSON line to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON line alone.")
def replay(
    *,
    trace: Path,
    url: str,
    model: str,
    profile: str,
    settings: tuple[str, ...],
    model_file: Path | None,
    speed: float,
    seed: int | None,
    ceiling: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Repeat a recorded load: requests of the same shapes, at the same times.

    A trace with texts is sent as it was. Of the others prompts are made-up words with the recorded lengths and the
    recorded beginnings in common, and answers have the recorded lengths. The last line is JSON.
    """
    from forgelm import log
    from forgelm.bench.driving import Timed
    from forgelm.bench.replaying import read_replay
    from forgelm.bench.rows import Planned
    from forgelm.bench.runs import measure
    from forgelm.bench.trace import read_trace

    log.configure("error")
    read_trace(trace)  # refuses what is none before a server is started
    seed = int(time.time()) if seed is None else seed
    notes = [f"{trace.name} at speed {speed:g}, seed {seed}"]

    def plan(terms: "Terms") -> list["Planned"]:
        found = read_replay(trace, terms, speed, seed)
        notes.extend(found.notes)
        return [Planned(found.workload, Timed(found.times))]

    with hooks() as shown, target_of(Server(url, model, profile, settings, model_file)) as target:
        measured = measure("replay", target, plan, shown, ceiling=ceiling, notes=notes)
    finish(measured.result, as_json=as_json, output=output, interrupted=measured.interrupted)


@click.command(cls=rich_click.RichCommand)
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="FORGELM_URL", help="The server to pass on to.")
@click.option("--listen", default="127.0.0.1:9999", show_default=True, help="Where clients connect: HOST:PORT.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The trace's file, a new one.")
@click.option("--text", is_flag=True, help="Write down what is said as well: keep the file to yourself.")
def record(*, url: str, listen: str, output: Path, text: bool) -> None:
    """Record the load on a server, as a proxy that changes nothing. Ctrl-C ends it.

    The trace has the times and shapes of requests: lengths, what begins alike, sampling, how long answers were. No word
    of what anybody wrote is in it, unless --text asks for that.
    """
    host, port = _address(listen)
    written = asyncio.run(_record(url, output, host, port, text=text))
    click.echo(f"{written} requests in {output}", err=True)


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen {listen}: it is HOST:PORT, as 127.0.0.1:9999")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _record(url: str, output: Path, host: str, port: int, *, text: bool) -> int:
    """Until a signal comes. The number of requests written down. Raises `MachineError` when the disk got full."""
    from forgelm.bench.client import Endpoint, reach
    from forgelm.bench.recording import Proxy, Recording

    endpoint = Endpoint(url)
    await reach(endpoint)
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    with Recording(output, text=text) as recording:
        proxy = Proxy(endpoint, recording)
        server = await proxy.listen(host, port)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        own = server.sockets[0].getsockname()[1]
        click.echo(f"recording: http://{host}:{own}/v1 passes on to {endpoint.base}; Ctrl-C ends it", err=True)
        await over.wait()
        server.close()
        await proxy.close()
    if recording.problem:
        raise MachineError(f"only {recording.written} requests could be written to {output}: {recording.problem}")
    return recording.written
