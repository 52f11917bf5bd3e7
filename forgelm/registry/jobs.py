"""The downloads of one registry: which of them are at work, and going on with those that a dead process left.

Two at once, and never two for one file. Everything that changes is on disk, so that a process that starts finds it.
"""

import secrets
import threading
import time
from pathlib import Path

from forgelm import log
from forgelm.errors import Conflict, NotFound
from forgelm.fit.budget import Budget
from forgelm.ipc.registry import Download, DownloadRequest, Downloads, Failure, State
from forgelm.registry.ending import Ending
from forgelm.registry.job import Job, failure_of
from forgelm.registry.library import Library
from forgelm.registry.planning import Planned
from forgelm.registry.progress import Cancelled
from forgelm.registry.records import Record, Records
from forgelm.registry.working import working

AT_ONCE = 2
KEPT = 50
"""Ended downloads that are remembered."""
STOP_SECONDS = 5.0
"""How long a download that is cancelled may take to stop."""


class Jobs:
    """All downloads. Any thread may call it."""

    def __init__(self, library: Library, state: Path) -> None:
        self._library = library
        self._records = Records(state)
        self._jobs: dict[str, Job] = {}
        self._working: dict[str, Job] = {}
        """By the place of what they fetch."""
        self._lock = threading.RLock()
        self._log = log.get("registry")
        self.ending = Ending()
        """Nothing is begun any more."""

    @property
    def unfinished(self) -> int:
        """Downloads that aren't ended."""
        return sum(not job.ended for job in list(self._jobs.values()))

    def resume(self) -> None:
        """Go on with what isn't ended, and remember what is."""
        with self._lock:
            for record in sorted(self._records.load(), key=lambda record: record.download.created):
                job = Job(record.download, record.planned)
                if not job.ended:
                    if not self._records.claim(job.id):
                        continue
                    self._log.info("going on with a download", repo=record.download.repo, file=record.download.file)
                    job.become("queued")
                self._jobs[job.id] = job
            self._prune()
            self._start_next()

    def submit(self, request: DownloadRequest, budget: Budget | None = None) -> Download:
        """Begin a download, or join the one of the same file. Raises `RequestError` when there can be none."""
        planned = self._library.plan(request, budget)
        self._library.accept(planned, accept_license=request.accept_license)
        place = str(self._library.place_of(planned))
        model = self._library.find(planned.here).id if planned.here else ""
        with self._lock:
            same = self._same(planned, place)
            if same is not None:
                return same.snapshot()
            job = self._add(planned, place)
            if planned.here:
                self._end(job, "done", model)
            else:
                self._start_next()
            return job.snapshot()

    def get(self, name: str) -> Job:
        """The download of that id. Raises `NotFound`."""
        job = self._jobs.get(name)
        if job is None:
            raise NotFound(f"there is no download {name[:80]!r}", param="id")
        return job

    def all(self) -> Downloads:
        """All of them, the newest first."""
        return Downloads(tuple(job.snapshot() for job in reversed(list(self._jobs.values()))))

    def cancel(self, name: str, *, purge: bool = False) -> Download:
        """Stop a download that isn't ended; as it is then. What is here of it stays, unless `purge` is said.

        Raises `NotFound`, and `Conflict` when it takes too long to stop.
        """
        job = self.get(name)
        with self._lock:
            at_work = self._working.get(job.place) is job
            if at_work:
                job.give_up(purge=purge)
            elif not job.ended:
                self._end(job, "cancelled")
        if at_work and not job.over.wait(STOP_SECONDS):
            raise Conflict("the download doesn't stop at once: try again")
        if purge and not at_work and job.snapshot().state != "done":
            self._library.discard(job.planned)
        return job.snapshot()

    def stop(self) -> None:
        """Have everything that is at work stop, and begin nothing any more."""
        with self._lock:
            self.ending.begin()
            for job in self._working.values():
                job.cancel.set()

    def close(self, seconds: float) -> None:
        """Stop, and wait `seconds` at most for it. What isn't ended stays so on disk, for the next process."""
        self.stop()
        end = time.monotonic() + seconds
        for job in list(self._working.values()):
            job.over.wait(max(0.0, end - time.monotonic()))
        for name in [job.id for job in self._jobs.values() if job.over.is_set()]:
            self._records.release(name)

    # --- one job ---

    def _same(self, planned: Planned, place: str) -> Job | None:
        """The download that this one would be again."""
        for job in reversed(self._jobs.values()):
            if job.place != place or job.planned.repo.commit != planned.repo.commit or job.given_up:
                continue
            if not job.ended or (planned.here and job.snapshot().state == "done"):
                return job
        return None

    def _add(self, planned: Planned, place: str) -> Job:
        download = Download(
            id=secrets.token_hex(8),
            repo=planned.repo.id,
            file=planned.candidate.file,
            revision=planned.repo.commit,
            state="queued",
            created=time.time(),
            total=planned.bytes,
            path=place,
            license=planned.license,
        )
        job = Job(download, planned)
        self._jobs[job.id] = job
        try:
            self._records.claim(job.id)
        except OSError as error:
            self._log.warning("a restart won't know of this download", id=job.id, reason=str(error))
        self._save(job)
        return job

    def _start_next(self) -> None:
        """Put to work what has waited longest for a place of its own, as long as there is room."""
        for job in list(self._jobs.values()):
            if len(self._working) >= AT_ONCE or self.ending.begun:
                return
            if not job.ended and job.place not in self._working:
                self._working[job.place] = job
                name = f"download-{job.id}"
                threading.Thread(target=job.context.run, args=(self._work, job), name=name, daemon=True).start()

    def _work(self, job: Job) -> None:
        """Fetch, in a thread of its own."""
        model, failure = "", None
        try:
            with working():
                model = self._library.pull(job.planned, accept_license=True, progress=job.advance, cancel=job.cancel).id
        except Cancelled:
            pass
        except Exception as error:  # noqa: BLE001  whatever it was, the download is over and its client is told
            failure = failure_of(error)
        if job.purge and not model:
            self._library.discard(job.planned)
        state: State = "failed" if failure else "done" if model else "cancelled"
        with self._lock:
            del self._working[job.place]
            if state != "cancelled" or job.given_up:
                self._end(job, state, model, failure)
            self._start_next()
        job.over.set()

    def _end(self, job: Job, state: State, model: str = "", failure: Failure | None = None) -> None:
        """The last change of a download."""
        job.become(state, model=model, error=failure)
        self._save(job)
        self._records.release(job.id)
        self._prune()
        job.over.set()

    def _save(self, job: Job) -> None:
        try:
            self._records.save(Record(job.snapshot(), job.planned))
        except OSError as error:
            self._log.warning("a restart won't know of this download", id=job.id, reason=str(error))

    def _prune(self) -> None:
        ended = [job for job in self._jobs.values() if job.ended]
        for job in ended[:-KEPT]:
            del self._jobs[job.id]
            self._records.drop(job.id)
