"""What the commands that measure a server share: lists on the command line, whom to measure, how far it is, the end."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from forgelm.commands.http import own_key
from forgelm.commands.progress import progress as bytes_progress
from forgelm.commands.terminal import coloured
from forgelm.errors import ConfigError, ForgeError

if TYPE_CHECKING:
    from forgelm.bench.result import Result
    from forgelm.bench.rows import Planned
    from forgelm.bench.runs import Hooks, Target

DEFAULT_URL = "http://127.0.0.1:8080"


class Counts(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 up, separated by commas."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} isn't a list of numbers from 1 up", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


class Rates(click.ParamType[tuple[float, ...]]):
    """Positive numbers, separated by commas."""

    name = "rates"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            found = tuple(dict.fromkeys(float(part) for part in str(value).split(",")))
        except ValueError:
            found = ()
        if not found or not all(0 < rate < 1e6 for rate in found):
            self.fail(f"{value!r} isn't a list of requests per second", param, ctx)
        return found


class Server(NamedTuple):
    """Which server the flags name."""

    url: str
    model: str
    profile: str
    settings: tuple[str, ...]
    model_file: Path | None


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of `Server`."""
    options = (
        click.option("--url", default="", help="A server that runs; its key in FORGELM_API_KEY.  "
                     f"[default: FORGELM_URL, or {DEFAULT_URL}]"),
        click.option("--model", default="", help="With --url, the name to ask for; else a GGUF to serve meanwhile."),
        click.option("--profile", default="", help="Serve this profile meanwhile: a name or TOML file."),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
                     help="Change a setting of it: engine.n_ubatch=256. Can be repeated."),
        click.option("--model-file", type=click.Path(path_type=Path),
                     help="The model's file, for the ceiling, where it can't be found otherwise."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def target_of(server: Server) -> Iterator["Target"]:
    """The server to measure, which is started where the flags say so.

    Raises `ConfigError` for flags that contradict each other, and what `serving` raises.
    """
    from forgelm.bench.client import Endpoint
    from forgelm.bench.runs import Target

    # Whoever ends us wants the server that we start, and its files, to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if server.url and (server.profile or server.settings):
        raise ConfigError("--url names a server that runs: --profile and --set are for one that is started")
    if server.url or not (server.profile or server.model or server.settings):
        yield Target(
            Endpoint(server.url or os.environ.get("FORGELM_URL") or DEFAULT_URL, own_key(), server.model),
            server.model_file,
        )
        return

    from forgelm.bench.serving import serving
    from forgelm.bench.watching import watch_tree
    from forgelm.profiles import load_profile

    profile = load_profile(server.profile or "starter")
    model = Path(server.model) if server.model else None
    click.echo("starting a server", err=True)
    with serving(profile, model=model, overrides=overrides_of(server.settings)) as own:
        file = server.model_file or model or profile.model.path()
        yield Target(Endpoint(own.url, own.key), file, watch_tree(own.pid))


def overrides_of(settings: tuple[str, ...]) -> dict[str, Any]:
    """`engine.n_ubatch=256` as an override: JSON where it is some, else text. Raises `ConfigError`."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {setting}: it is KEY=VALUE, as engine.n_ubatch=256")
        try:
            found[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[key] = value
    return found


@contextmanager
def hooks() -> Iterator["Hooks"]:
    """Says on stderr how far it is: a bar on a terminal, elsewhere a line as each row begins."""
    from forgelm.bench.runs import Hooks

    with bytes_progress() as hashing:
        if not sys.stderr.isatty():
            yield Hooks(_line, hashing, lambda what: click.echo(what, err=True))
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True, highlight=False)
        # Twice a second: drawing takes from the cores that are measured.
        columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
            task = bar.add_task("", total=None)

            def row(planned: "Planned", left: int) -> Callable[[int, int], None]:
                bar.reset(task, total=None, description=_words(planned, left))
                return lambda done, total: bar.update(task, completed=done, total=total or None)

            yield Hooks(row, hashing, lambda what: bar.update(task, description=what))


def _line(planned: "Planned", left: int) -> Callable[[int, int], None]:
    click.echo(_words(planned, left), err=True)
    return lambda _done, _total: None


def _words(planned: "Planned", left: int) -> str:
    return planned.label + (f" ({left} after it)" if left else "")


def finish(result: "Result", *, as_json: bool, output: Path | None, interrupted: bool) -> None:
    """Print the table, then the line, and add the line to `output`. Exits as an interrupted program does if it was.

    Raises `ForgeError` where no request was answered.
    """
    from forgelm.bench.printing import append_line, print_result
    from forgelm.bench.result import to_line

    if not as_json:
        print_result(result, colour=coloured(sys.stdout))
    click.echo(to_line(result))
    if output is not None:
        append_line(result, output)
    if interrupted:
        raise click.Abort
    if not any(row.requests for row in result.rows):
        raise ForgeError("no request was answered")
