"""Whether what somebody asks for is on this machine already: in the models' folder, imported, or in another cache."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from forgelm.config import ModelSource
from forgelm.errors import InvalidRequest
from forgelm.ipc.registry import Installed
from forgelm.registry import hfcache
from forgelm.registry.disk import stamp_of
from forgelm.registry.names import Candidate, Reference, safe_path
from forgelm.registry.partial import Partial, read_origin
from forgelm.registry.profiles import path_of
from forgelm.registry.remote import RemoteFile, Repo


class Presence:
    """What one models' folder and the listed imports have."""

    def __init__(self, models: Path, installed: Sequence[Installed]) -> None:
        self._models = models
        self._installed = installed

    def of_profile(self, source: ModelSource) -> Installed | None:
        """The model that a profile's file is; None when it isn't there, or is of another size."""
        path = str(path_of(self._models, source))
        found = next((each for each in self._installed if each.path == path), None)
        return found if found and source.bytes in (0, found.bytes) else None

    def of(self, repo: Repo, candidate: Candidate) -> Installed | None:
        """The model that a repository's is, as far as names, sizes and the hub's notes tell."""
        try:
            place = str(self._models / safe_path(repo.id, candidate.file))
        except InvalidRequest:
            return None
        for each in self._installed:
            if each.bytes != candidate.bytes:
                continue
            imported = each.origin == "import" and each.repo == repo.id and each.path.endswith(f"/{candidate.file}")
            if imported or (each.path == place and self._is_same(repo, candidate)):
                return each
        return None

    def repo(self, wanted: Reference) -> Repo | None:
        """A repository as far as it was fetched, by us or by others: for when the hub can't be asked."""
        cached = hfcache.cached_repo(wanted.repo, wanted.revision)
        here = next((each for each in self._installed if each.repo == wanted.repo and each.origin == "hub"), None)
        if here is None:
            return cached
        files = {file.path: file for file in (*self._fetched(wanted.repo), *(cached.files if cached else ()))}
        commit = cached.commit if cached else here.revision
        return Repo(id=wanted.repo, commit=commit, license=here.license, files=tuple(files.values()))

    def _fetched(self, repo: str) -> Iterator[RemoteFile]:
        """The files of a repository that are in the models' folder, as the hub had them."""
        folder = self._models / repo
        for path in sorted(folder.rglob("*.gguf")):
            origin = read_origin(path)
            if origin is not None:
                yield RemoteFile(path.relative_to(folder).as_posix(), path.stat().st_size, origin.sha256)

    def _is_same(self, repo: Repo, candidate: Candidate) -> bool:
        """Whether the parts in the models' folder are those that the hub has now. Of a file that somebody put there
        only the size is known."""
        files = {file.path: file for file in repo.files}
        for part in candidate.parts:
            path, file = self._models / safe_path(repo.id, part), files[part]
            stamp = stamp_of(path)
            if stamp is None or stamp.size != file.size:
                return False
            if read_origin(path) is not None and not Partial(path).is_whole(file.size, file.sha256):
                return False
        return True


def cached(repo: Repo) -> tuple[str, ...]:
    """Where a Hugging Face cache has all files of `repo`; nothing when it lacks one."""
    found = [hfcache.cached(repo.id, repo.commit, file) for file in repo.files]
    return tuple(str(path) for path in found if path) if all(found) else ()
