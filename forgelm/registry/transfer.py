"""Fetching one file into the models' folder, so that it can be interrupted at any point and goes on from there.

Our own transfer, since huggingface_hub's throws a partial file away when its process ends (2.4.0: a name of its own for
each attempt, deleted in the end). hf_xet (1.8.0) could deliver ranges for us to keep, but only from a Xet server, which
mirrors (`HF_ENDPOINT`) and tests haven't, on threads, buffers and a proxy configuration of its own; ranges over HTTPS
are served for every file, and fill a line. Whatever comes is held against the sha256 that the hub keeps for it.
"""

import threading
from pathlib import Path
from typing import Literal

import msgspec

from forgelm import log
from forgelm.errors import MachineError, UpstreamFailed
from forgelm.registry import locks, space
from forgelm.registry.connections import Connections
from forgelm.registry.download import Download, StartOver
from forgelm.registry.hashing import hash_files
from forgelm.registry.hub import Hub
from forgelm.registry.names import safe_path
from forgelm.registry.partial import Origin, Partial, State, boot_id, read_origin, write_origin
from forgelm.registry.progress import Cancelled, Progress, Watch
from forgelm.registry.remote import RemoteFile, Repo
from forgelm.registry.retries import Patience

MOST_CONNECTIONS = 16
LARGE = 64 << 20
"""Bytes from which on several connections are worth their handshakes."""


def fetch(
    hub: Hub,
    repo: Repo,
    file: RemoteFile,
    folder: Path,
    *,
    cancel: threading.Event,
    progress: Watch,
    connections: int = 4,
) -> Path:
    """The path of `file` below the models' folder, whole and verified; fetched as far as it isn't here.

    One that another process or thread fetches is waited for. `progress` is called from this thread. Raises `Cancelled`
    within a second of `cancel`, `Offline`, `Forbidden`, `NotFound`, `NoSpace`, `UpstreamFailed`, and `MachineError` for
    a folder that can't be written.
    """
    target = folder / safe_path(repo.id, file.path)
    with space.explained(target):
        partial = Partial(target)
        if partial.is_whole(file.size, file.sha256):
            return target
        if target.is_dir():
            raise MachineError(f"{target} is a folder, in the way of the model's file: move it away.")
        target.parent.mkdir(parents=True, exist_ok=True)
        fetching = _Fetching(hub, repo, file, partial, cancel=cancel, progress=progress, connections=connections)
        with locks.held(partial.lock, fetching.wait):
            fetching.run()
    return target


class _Fetching:
    """One call of `fetch`."""

    def __init__(
        self,
        hub: Hub,
        repo: Repo,
        file: RemoteFile,
        partial: Partial,
        *,
        cancel: threading.Event,
        progress: Watch,
        connections: int,
    ) -> None:
        self._hub = hub
        self._repo = repo
        self._file = file
        self._partial = partial
        self._cancel = cancel
        self._progress = progress
        large = file.size > LARGE
        self._connections = max(1, min(connections, MOST_CONNECTIONS)) if large else 1
        self._origin = Origin(repo.id, file.path, repo.commit, file.size, file.sha256, repo.license)
        self._log = log.get("registry")

    def wait(self, seconds: float) -> None:
        """Show how far whoever holds the lock is. Raises `Cancelled`."""
        state = self._partial.load()
        self._tell(state.bytes if state else 0, "waiting")
        self._pause(seconds)

    def run(self) -> None:
        """With the lock held: see what is here, and bring the rest."""
        state = self._begun()
        if self._partial.is_whole(self._file.size, self._file.sha256) or self._is_adopted():
            return
        patience = Patience(self._hub.limits, self._hub.endpoint)
        whole = wrong = False
        while True:
            space.check(self._partial.target.parent, self._file.size - state.bytes, self._file.path)
            # Before anything comes: a small file may be there before the first look at how far it is.
            self._tell(state.bytes, "downloading")
            try:
                digest = self._download(state, whole=whole)
            except StartOver as reason:
                self._start_over(str(reason))
                state, whole = self._fresh(), whole or reason.whole
                self._pause(patience.failed(reason.failure))
                continue
            if digest == self._file.sha256:
                self._partial.finish(self._origin)
                return
            self._start_over(f"its sha256 is {digest} instead of {self._file.sha256}")
            if wrong:
                raise UpstreamFailed(
                    f"{self._file.path} came with another sha256 than {self._hub.endpoint} says, twice: nothing of it "
                    "was kept. Try again later, without a proxy if there is one."
                )
            state, wrong = self._fresh(), True

    def _download(self, state: State, *, whole: bool) -> str:
        connections = Connections(self._hub.limits, self._connections)
        link = self._hub.link(self._repo, self._file, connections, state.etag)
        try:
            download = Download(link, self._partial, state, self._hub.limits, self._hub.endpoint)
            return download.run(self._watch, connections=self._connections, whole=whole)
        finally:
            connections.close()

    def _begun(self) -> State:
        """What is here of this very file; what is here of another is thrown away."""
        state = self._partial.load()
        if state is None:
            return self._fresh()
        same = (state.size, state.sha256) == (self._file.size, self._file.sha256)
        # Without a sha256 only the commit and the server's ETag tell versions apart.
        if same and (state.sha256 or (state.etag and state.revision == self._repo.commit)):
            fresh = self._fresh()
            return msgspec.structs.replace(fresh, etag=state.etag, done=state.done, synced=state.synced)
        self._start_over("the hub has another version now")
        return self._fresh()

    def _fresh(self) -> State:
        origin = self._origin
        return State(
            origin.repo, origin.file, origin.revision, origin.size, origin.sha256, origin.license, boot=boot_id()
        )

    def _start_over(self, reason: str) -> None:
        self._log.warning("a download starts over", file=self._file.path, reason=reason)
        self._partial.discard()

    def _is_adopted(self) -> bool:
        """Whether the file that somebody put here is the hub's, which then needn't be fetched."""
        target = self._partial.target
        if not self._file.sha256 or self._partial.data.exists() or read_origin(target) is not None:
            return False
        try:
            if target.stat().st_size != self._file.size:
                return False
            (digest,) = hash_files([target], self._file.size, self._progress, self._cancel)
        except FileNotFoundError:
            return False
        if digest == self._file.sha256:
            write_origin(target, self._origin)
        return digest == self._file.sha256

    def _watch(self, here: int, hashed: int) -> None:
        if here < self._file.size:
            self._tell(here, "downloading")
        else:
            self._tell(hashed, "verifying")
        self._pause(0.0)

    def _tell(self, count: int, state: Literal["waiting", "downloading", "verifying"]) -> None:
        self._progress(Progress(count, self._file.size, state))

    def _pause(self, seconds: float) -> None:
        if self._cancel.wait(seconds):
            raise Cancelled(f"{self._file.path} isn't fetched any further; what is here of it stays.")
