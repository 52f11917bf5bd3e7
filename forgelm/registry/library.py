"""The models of this machine, and the way to more of them: everything that the sidecar and the commands offer.

Any thread may call it, and any number of processes on the same folders.
"""

import threading
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forgelm.errors import Conflict, ModelError, ModelNotFound
from forgelm.fit.budget import Budget
from forgelm.ipc.registry import DownloadRequest, Imported, Installed, InstalledModels, Search, SearchResult
from forgelm.registry.catalog import catalogue
from forgelm.registry.disk import Lying, scan, stamp_of
from forgelm.registry.fitness import Fitness
from forgelm.registry.hashing import hash_files
from forgelm.registry.headers import read_model
from forgelm.registry.importing import find
from forgelm.registry.imports import Imports, records_of
from forgelm.registry.index import Facts, Index, Stamp
from forgelm.registry.judge import Judgement, judge
from forgelm.registry.licenses import Licenses
from forgelm.registry.names import quant_of
from forgelm.registry.once import Once
from forgelm.registry.planning import Planned, Planner, require_servable, unread
from forgelm.registry.profiles import read_profiles
from forgelm.registry.progress import Watch
from forgelm.registry.pulling import Puller
from forgelm.registry.removal import delete

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub

MOST_NAMED = 5
"""Models that an error names."""


class _Here(NamedTuple):
    """What is on this machine at one moment."""

    files: list[Lying]
    missing: list[str]
    facts: dict[str, Facts]
    models: Sequence[Installed]
    """Of `files`, in the same order."""

    def number(self, name: str) -> int:
        """The model with this id, alias or path. Raises `ModelNotFound`."""
        for said in (str, str.casefold):
            found = [
                number
                for number, each in enumerate(self.models)
                if said(name) in map(said, (each.id, each.path, *each.aliases))
            ]
            # Several at one path are one file.
            if len({self.models[number].path for number in found}) == 1:
                return found[0]
        raise _unknown(name, self.models)

    def hashed(self, stamp: Stamp, sha256: str) -> Facts:
        """What is known of a file that was just hashed."""
        known = self.facts.get(stamp.path)
        if known is None or known.stamp != stamp:
            return Facts(stamp, None, sha256, sha256, known.used if known else 0.0)
        return known._replace(sha256=sha256, first_sha256=known.first_sha256 or sha256)


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
        here = self._look()
        return InstalledModels(tuple(sorted(here.models, key=lambda model: model.id.casefold())), tuple(here.missing))

    def find(self, name: str) -> Installed:
        """The model with this id, alias or path; of several that are one file the path means the first, which has no
        settings where there is such a one. Raises `ModelNotFound` with those of nearly this name."""
        here = self._look()
        return here.models[here.number(name)]

    def used(self, name: str) -> Installed:
        """Note that a model is used now. Raises `ModelNotFound`."""
        model, now = self.find(name), time.time()
        self._index.used(model.path, now)
        return msgspec.structs.replace(model, last_used=now)

    def remove(self, name: str) -> Installed:
        """Delete a model of ours, or forget an imported one; what it was.

        Raises `ModelNotFound`, `Conflict` while it is being fetched anew, and `Forbidden` where it can't be deleted.
        """
        here, gone = self._look(), self._imports.named(name)
        try:
            number = here.number(name)
        except ModelNotFound:
            if gone is None:
                raise
            self._imports.forget(gone.path, "" if name == gone.path else gone.id)
            return Installed(id=name, path=gone.path, bytes=0, origin="import")
        model, files = here.models[number], here.files[number]
        if model.origin == "import":
            self._imports.forget(model.path, "" if name == model.path else files.wanted_id)
        else:
            delete(self._models, [Path(part.path) for part in files.parts])
        if all(each.path != model.path for each in self._lying()[0]):
            self._index.forget([model.path])
        return model

    def add(self, path: Path) -> Imported:
        """List the models at `path`, a file or a folder, from where they are; profiles are made of Ollama's settings.

        Raises `InvalidRequest` when there is nothing.
        """
        found = find(path)
        inside = {part.path for each in scan(self._models) for part in each.parts}
        records = records_of(model for model in found.models if str(model.path) not in inside)
        self._imports.add(records)
        paths = {str(model.path) for model in found.models}
        models = tuple(each for each in self.installed() if each.path in paths)
        profiles = tuple(each.profile for each in records if each.profile)
        return Imported(models, found.refused, found.companions, profiles)

    def verify(self, name: str, progress: Watch, cancel: threading.Event) -> Installed:
        """Hash a model; a wrong one is told in `problem` and stays.

        Raises `ModelNotFound`, `Cancelled`, and `Conflict` for one that can't be read or changes meanwhile.
        """
        here = self._look()
        number = here.number(name)
        files = here.files[number]
        paths = [Path(part.path) for part in files.parts]
        try:
            hashes = ",".join(hash_files(paths, files.bytes, progress, cancel))
        except OSError as error:
            raise Conflict(f"{files.path} can't be read: {error.strerror}", param="model") from None
        if tuple(map(stamp_of, paths)) != files.parts:
            raise Conflict(f"{files.path} changed while it was read: try again", param="model")
        self._index.hashed(files.stamp, hashes)
        # The verdict doesn't come from the index, which may be one that can't be written.
        return self._catalogue(here.files, {**here.facts, files.path: here.hashed(files.stamp, hashes)})[number]

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

    def _look(self) -> "_Here":
        (files, missing), facts = self._lying(), self._index.facts()
        return _Here(files, missing, facts, self._catalogue(files, facts))

    def _lying(self) -> tuple[list[Lying], list[str]]:
        """All models' files, and the missing ones of imports. An import that came into the folder is told once."""
        ours = scan(self._models)
        imported, missing = self._imports.lying()
        known = {str(Path(each.path).resolve()) for each in ours}
        return [*ours, *(each for each in imported if str(Path(each.path).resolve()) not in known)], missing

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


def _unknown(name: str, models: Sequence[Installed]) -> ModelNotFound:
    """Says which models have nearly this name, or which there are."""
    names = {name.casefold(): name for each in models for name in (*each.aliases, each.id)}
    near = [names[each] for each in get_close_matches(name.casefold(), names, n=3)]
    if near:
        known = f"did you mean {' or '.join(near)}?"
    else:
        ids = sorted(each.id for each in models)[:MOST_NAMED]
        known = f"there is {', '.join(ids) or 'none'}{', …' if len(models) > MOST_NAMED else ''}"
    return ModelNotFound(f"there is no model {name[:80]!r} here; {known}", param="model")
