"""What NAME means to `forgelm pull`, which file that comes to and why, and names that are nearly right."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from forgelm.commands.terminal import one_line, size_text
from forgelm.config import ModelSource, Profile
from forgelm.errors import ConfigError, ForgeError, InvalidRequest, UpstreamFailed
from forgelm.ipc.registry import DownloadRequest, Search
from forgelm.profiles import available_profiles, load_profile

if TYPE_CHECKING:
    from forgelm.registry.library import Library
    from forgelm.registry.planning import Planned


class Wanted(msgspec.Struct, frozen=True):
    """What was asked for."""

    request: DownloadRequest = DownloadRequest()
    package: Profile | None = None
    """The profile, where its model comes in a wheel: then there is nothing to request."""
    source: ModelSource | None = None
    """What a profile's file says of the model, which the registry doesn't know of."""
    named: bool = False
    """The very file or quantization was named."""


def read_wanted(name: str, quant: str, revision: str) -> Wanted:
    """What NAME means: a profile by name or file, or a reference to the hub.

    Raises `InvalidRequest` with names that are nearly this one, and `ConfigError`.
    """
    from forgelm.registry.names import parse_reference

    is_file = name.endswith(".toml") and Path(name).expanduser().is_file()
    if is_file or name in available_profiles():
        if quant or revision != "main":
            raise ConfigError(f"the profile {name} names its own file: leave out --quant and --revision")
        return _of_profile(name, load_profile(name), is_file=is_file)
    try:
        given = parse_reference(name)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}{_known(name)}", param=error.param) from None
    request = DownloadRequest(repo=name, quant=quant, revision=revision)
    return Wanted(request, named=bool(given.file or given.quant or quant))


def _of_profile(name: str, profile: Profile, *, is_file: bool) -> Wanted:
    model = profile.model
    if model.package:
        return Wanted(package=profile)
    if not is_file:
        return Wanted(DownloadRequest(profile=name), named=True)
    if not model.repo:
        raise InvalidRequest(f"profile {name} names no source for {model.file}: put it at {model.path()}")
    request = DownloadRequest(repo=model.repo, file=model.file, revision=model.revision or "main")
    return Wanted(request, source=model, named=True)


def _known(name: str) -> str:
    near = get_close_matches(name, available_profiles(), n=2)
    profiles = f" Did you mean the profile {' or '.join(near)}?" if near else ""
    return f"{profiles} `forgelm search {one_line(name)}` asks the hub." if "/" not in name else profiles


def require_agreement(planned: "Planned", source: ModelSource | None) -> None:
    """Raises `UpstreamFailed` when the hub has something else than a profile's file names."""
    if source is None or planned.here:
        return
    file = planned.repo.files[0]
    if source.bytes not in (0, file.size) or (source.sha256 and file.sha256 and source.sha256 != file.sha256):
        raise UpstreamFailed(f"the hub has another {source.file} in {source.repo} than the profile names")


def say_choice(planned: "Planned", wanted: Wanted, begun: int) -> None:
    """Tell on stderr which file it is, why, and what is known of it, before anything is fetched.

    Of it `begun` bytes are here from an earlier attempt.
    """
    repo, found, judged = planned.repo, planned.candidate, planned.judgement
    parts = f" in {len(found.parts)} parts" if len(found.parts) > 1 else ""
    commit = f" at {repo.commit[:8]}" if repo.commit else ""
    lines = [f"{repo.id}{commit}: {found.file}, {size_text(found.bytes)}{parts} ({_why(planned, wanted)})"]
    facts = [judged.architecture, _parameters(judged.parameters)]
    facts += [f"context {judged.context:,}" if judged.context else "", "" if judged.kind == "chat" else judged.kind]
    facts += ["chat template" if judged.template else "", "next-token head" if judged.mtp else ""]
    lines.append(", ".join(filter(None, facts)))
    lines.append(judged.note)
    lines.append(f"{'fits' if planned.fit.fits else 'too large for this machine'}: {planned.fit.detail}")
    license = planned.license or "none stated"
    lines.append(f"licence: {license}{f' ({repo.license_link})' if repo.license_link else ''}")
    if planned.here:
        lines.append("it is here already")
    elif planned.cached:
        lines.append("a Hugging Face cache has it: it is listed from there")
    elif begun:
        lines.append(f"{size_text(begun)} of it are here: the rest is fetched")
    for line in filter(None, lines):
        click.echo(one_line(line), err=True)


def _parameters(count: int) -> str:
    if not count:
        return ""
    return f"{count / 1e9:.1f}B parameters" if count >= 1e9 else f"{count / 1e6:.0f}M parameters"


def _why(planned: "Planned", wanted: Wanted) -> str:
    from forgelm.registry.names import PREFERRED

    quant, fits = planned.candidate.quant, planned.fit.fits
    if planned.profile:
        return f"as profile {planned.profile} says"
    if wanted.named:
        return "as asked for"
    if quant == PREFERRED[0]:
        return "the usual choice"
    if quant == PREFERRED[1]:
        return f"the second choice: {PREFERRED[0]} isn't there or doesn't fit"
    return "the largest that fits" if fits else "the smallest, and no other fits either"


def near_misses(library: "Library", request: DownloadRequest) -> str:
    """A clause with repositories of the hub that may be meant; "" where none are found."""
    from forgelm.registry.names import parse_reference

    if not request.repo:
        return ""
    wanted = parse_reference(request.repo).repo
    owner, _, name = wanted.partition("/")
    try:
        found = library.search(Search(query=name, limit=5)).models
        found = found or library.search(Search(author=owner, limit=10)).models
    except ForgeError:
        return ""
    ids = [model.repo for model in found]
    # Where the repository is there, something in it isn't, and others are no help.
    near = [] if wanted in ids else get_close_matches(wanted, ids, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
