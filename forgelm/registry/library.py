"""The models of this machine, and the way to more of them: everything that the sidecar and the commands offer.

Any thread may call it, and any number of processes on the same folders.
"""

import threading
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm import log
from forgelm.errors import ConfigError, Conflict, ModelError, ModelNotFound
from forgelm.fit.budget import Budget
from forgelm.ipc.registry import DownloadRequest, Imported, Installed, InstalledModels, Search, SearchResult
from forgelm.registry.catalog import catalogue
from forgelm.registry.disk import Lying, scan
from forgelm.registry.fitness import Fitness
from forgelm.registry.hashing import hash_files
from forgelm.registry.headers import read_model
from forgelm.registry.importing import FoundModel, find
from forgelm.registry.imports import Imports, Record
from forgelm.registry.index import Facts, Index, Stamp
from forgelm.registry.judge import Judgement, judge
from forgelm.registry.licenses import Licenses
from forgelm.registry.names import quant_of
from forgelm.registry.once import Once
from forgelm.registry.planning import Planned, Planner, require_servable, unread
from forgelm.registry.profiles import read_profiles, write_profile
from forgelm.registry.progress import Watch
from forgelm.registry.pulling import Puller
from forgelm.registry.removal import delete

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub

MOST_NAMED = 5
"""Models that an error names."""


class Library:
    """One models' folder, with the index and the imports in one state directory."""

    def __init__(
        self,
        models: Path,
        state: Path,
        *,
        hub: "Callable[[], Hub]",
        repacked: frozenset[str],
        budget: Callable[[], Budget],
        connections: int = 4,
    ) -> None:
        """`models` is `paths.models_dir()`, which the starter goes to. `hub` is called when the hub is needed first.
        `repacked` and `budget` are this machine's: what its CPU copies, and its memory now.
        `connections` at most are opened for a large file."""
        hub = Once(hub)
        self._models = models
        self._index = Index(state)
        self._imports = Imports(state)
        self._licenses = Licenses(state)
        self._repacked = repacked
        self._budget = budget
        self._planner = Planner(models, hub, self.installed)
        self._puller = Puller(models, hub, self._imports, connections)

    # --- what is here ---

    def installed(self) -> list[Installed]:
        """Every model, by id."""
        return list(self.listing().models)

    def listing(self) -> InstalledModels:
        """Every model by id, and the imports that aren't there at the moment."""
        lying, missing = self._lying()
        models = self._catalogue(lying, self._index.facts())
        return InstalledModels(tuple(sorted(models, key=lambda model: model.id.casefold())), tuple(missing))

    def find(self, name: str) -> Installed:
        """The model with this id, alias or path. Raises `ModelNotFound` with those of nearly this name."""
        models = self.installed()
        for said in (str, str.casefold):
            found = [each for each in models if said(name) in map(said, (each.id, each.path, *each.aliases))]
            if len(found) == 1:
                return found[0]
        raise _unknown(name, models)

    def used(self, name: str) -> Installed:
        """Note that a model is used now. Raises `ModelNotFound`."""
        model, now = self.find(name), time.time()
        self._index.used(model.path, now)
        return msgspec.structs.replace(model, last_used=now)

    def remove(self, name: str) -> Installed:
        """Delete a model of ours, or forget an imported one; what it was.

        Raises `ModelNotFound`, `Conflict` while it is being fetched anew, and `Forbidden` where it can't be deleted.
        """
        gone = self._imports.named(name)
        try:
            model = self.find(name)
        except ModelNotFound:
            if not gone:
                raise
            model = Installed(id=name, path=gone, bytes=0, origin="import")
        if model.origin == "import":
            self._imports.forget(model.path)
        else:
            lying = self._lying_at(model.path)
            delete(self._models, [Path(part.path) for part in lying.parts])
        self._index.forget([model.path])
        return model

    def add(self, path: Path) -> Imported:
        """List the models at `path`, a file or a folder, from where they are; profiles are made of Ollama's settings.

        Raises `InvalidRequest` when there is nothing.
        """
        found = find(path)
        inside = {part.path for each in scan(self._models) for part in each.parts}
        by_path: dict[str, list[FoundModel]] = {}
        for model in found.models:
            if str(model.path) not in inside:
                by_path.setdefault(str(model.path), []).append(model)
        profiles = {path: [_profile_for(model) for model in same] for path, same in by_path.items()}
        self._imports.add(_record(same, next(filter(None, profiles[path]), "")) for path, same in by_path.items())
        paths = {str(model.path) for model in found.models}
        models = tuple(each for each in self.installed() if each.path in paths)
        return Imported(models, found.refused, found.companions, tuple(filter(None, chain(*profiles.values()))))

    def verify(self, name: str, progress: Watch, cancel: threading.Event) -> Installed:
        """Hash a model; a wrong one is told in `problem` and stays. Raises `ModelNotFound` and `Cancelled`."""
        lying = self._lying_at(self.find(name).path)
        try:
            hashes = hash_files([Path(part.path) for part in lying.parts], lying.bytes, progress, cancel)
        except OSError as error:
            raise Conflict(f"{lying.path} can't be read: {error.strerror}", param="model") from None
        self._index.hashed(lying.stamp, ",".join(hashes))
        return self.find(lying.path)

    # --- what the hub has ---

    def search(self, search: Search, budget: Budget | None = None) -> SearchResult:
        """Ask the hub for models, and tell which fit into `budget`, this machine's where none is given."""
        return self._planner.search(search, self._fitness(budget))

    def inspect(self, request: DownloadRequest, budget: Budget | None = None) -> Planned:
        """What a request comes to: which file, what it is, whether it fits, and if it can't be served why not.

        Raises `RequestError`.
        """
        return self._planner.inspect(request, self._fitness(budget))

    def plan(self, request: DownloadRequest, budget: Budget | None = None) -> Planned:
        """The same; a model that can't be served is refused. Raises `RequestError`."""
        planned = self.inspect(request, budget)
        require_servable(planned)
        return planned

    def is_accepted(self, planned: Planned) -> bool:
        """Whether nobody needs to be asked about the model's licence."""
        return bool(planned.here or planned.cached) or self._licenses.is_accepted(planned.repo.id, planned.license)

    def accept(self, planned: Planned, *, accept_license: bool) -> None:
        """Remember a licence as accepted, if it needs to be. Raises `LicenseNotAccepted` where nobody says so."""
        if not (planned.here or planned.cached):
            link = planned.repo.license_link
            self._licenses.require(planned.repo.id, planned.license, link, accept=accept_license)

    def pull(
        self, planned: Planned, *, accept_license: bool = False, progress: Watch, cancel: threading.Event
    ) -> Installed:
        """Bring a planned model here. Raises `RequestError`, `Cancelled`, and `OSError` for the disk's."""
        self.accept(planned, accept_license=accept_license)
        return self.find(str(self._puller.pull(planned, progress, cancel)))

    def place_of(self, planned: Planned) -> Path:
        """Where a planned model is, or will be."""
        return self._puller.place_of(planned)

    def begun(self, planned: Planned) -> int:
        """Bytes that are here of a model that is to be fetched from the hub and isn't whole."""
        return self._puller.begun(planned)

    def discard(self, planned: Planned) -> None:
        """Delete what is here of a model that wasn't fetched to its end, unless somebody fetches it."""
        self._puller.discard(planned)

    # --- inside ---

    def _fitness(self, budget: Budget | None) -> Fitness:
        return Fitness(budget or self._budget(), self._repacked)

    def _lying(self) -> tuple[list[Lying], list[str]]:
        """All models' files, and the missing ones of imports. An import that came into the folder is told once."""
        ours = scan(self._models)
        imported, missing = self._imports.lying()
        known = {str(Path(each.path).resolve()) for each in ours}
        return [*ours, *(each for each in imported if str(Path(each.path).resolve()) not in known)], missing

    def _lying_at(self, path: str) -> Lying:
        found = next((each for each in self._lying()[0] if each.path == path), None)
        if found is None:
            raise ModelNotFound(f"{path} is gone", param="model")
        return found

    def _catalogue(self, lying: Sequence[Lying], facts: dict[str, Facts]) -> Sequence[Installed]:
        judgements = self._judgements(lying, facts)
        return catalogue(self._models, lying, judgements, facts, read_profiles())

    def _judgements(self, lying: Sequence[Lying], facts: dict[str, Facts]) -> dict[str, Judgement]:
        """Path → judgement of every model and head; headers are read where the index doesn't know them."""
        wanted: dict[Stamp, tuple[str, ...]] = {}
        for each in lying:
            wanted[each.stamp] = tuple(part.path for part in each.parts)
            wanted |= {head: (head.path,) for head in each.heads}
        found, new = dict[str, Judgement](), list[tuple[Stamp, Judgement]]()
        for stamp, parts in wanted.items():
            known = facts.get(stamp.path)
            judgement = known.judgement if known and known.stamp == stamp else None
            if judgement is None:
                try:
                    judgement = judge(read_model([Path(part) for part in parts]), Path(stamp.path).name)
                    new.append((stamp, judgement))
                except ModelError as error:
                    # Not kept: a disk or permissions may be to blame, which don't change the file.
                    judgement = unread(quant_of(stamp.path), str(error))
            found[stamp.path] = judgement
        self._index.judged(new)
        return found


def _profile_for(model: FoundModel) -> str:
    """The name of the profile made of a model's settings; "" where there are none, or it can't be written."""
    if not model.profile_toml:
        return ""
    try:
        return write_profile(model.profile_toml, model.path)
    except (ConfigError, OSError) as error:
        log.get("registry").warning("no profile is written", model=model.id, reason=str(error))
        return ""


def _unknown(name: str, models: Sequence[Installed]) -> ModelNotFound:
    """Says which models have nearly this name, or which there are."""
    names = {name.casefold(): name for each in models for name in (*each.aliases, each.id)}
    near = [names[each] for each in get_close_matches(name.casefold(), names, n=3)]
    if near:
        known = f"did you mean {' or '.join(near)}?"
    else:
        ids = [each.id for each in models[:MOST_NAMED]]
        known = f"there is {', '.join(ids) or 'none'}{', …' if len(models) > MOST_NAMED else ''}"
    return ModelNotFound(f"there is no model {name[:80]!r} here; {known}", param="model")


def _record(same: Sequence[FoundModel], profile: str) -> Record:
    """Of one file, which Ollama may have under several names with settings of their own."""
    model, *others = same
    names = [name for other in others for name in (other.id, *other.aliases)]
    return Record(
        parts=tuple(map(str, model.parts)),
        id=model.id,
        repo=model.repo,
        revision=model.revision,
        sha256=model.sha256,
        license=model.license,
        profile=profile,
        aliases=(*model.aliases, *names),
        note=model.judgement.note,
    )
