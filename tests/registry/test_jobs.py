"""Downloads in the background: how many, how far, stopped, failed, and gone on with by the next process."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.errors import LicenseNotAccepted, NotFound
from forgelm.ipc.registry import Download, DownloadRequest
from forgelm.registry import jobs as module
from forgelm.registry import space
from forgelm.registry.job import Job
from forgelm.registry.jobs import Jobs
from forgelm.registry.partial import Partial
from tests.registry.files import write_tiny
from tests.registry.hub import LocalHub
from tests.registry.shelf import Shelf

REPO = "local/m-GGUF"
REQUEST = DownloadRequest(REPO)
SIZE = 12 << 20
PATIENCE = 30.0


def model(tmp_path: Path, name: str) -> Path:
    """A model of some megabytes, none like another."""
    path = write_tiny(tmp_path / f"{name}.gguf")
    with path.open("ab") as file:
        file.write(name.encode() * (SIZE // len(name)))
    return path


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> LocalHub:
    """With a repository of three models."""
    local.add(REPO, {f"m-{quant}.gguf": model(tmp_path, quant) for quant in ("Q4_K_M", "Q5_K_M", "Q8_0")})
    return local


class Running:
    """The jobs of a registry, and of the ones that come after it."""

    def __init__(self, shelf: Shelf, hub: LocalHub) -> None:
        self.shelf = shelf
        self.hub = hub
        self.jobs = self.make()

    def make(self, state: Path | None = None) -> Jobs:
        state = state or self.shelf.state
        return Jobs(self.shelf.library(self.hub, state=state), state)

    def restart(self) -> Jobs:
        """End the present ones, as a process that is told to end does, and start the next."""
        self.jobs.close(PATIENCE)
        self.jobs = self.make()
        self.jobs.resume()
        return self.jobs

    def sent(self, name: str) -> int:
        return self.hub.log.sent(self.hub.catalog.models[REPO].files[name].sha256)


@pytest.fixture
def running(shelf: Shelf, hub: LocalHub) -> Iterator[Running]:
    found = Running(shelf, hub)
    yield found
    hub.faults.release.set()
    found.jobs.close(PATIENCE)


def until(job: Job, *states: str, beyond: int = -1) -> Download:
    """Wait, by being told, for one of `states` with more than `beyond` bytes."""
    changed = threading.Event()
    with job.watched(changed.set):
        while True:
            changed.clear()
            now = job.snapshot()
            if now.state in states and now.bytes > beyond:
                return now
            assert changed.wait(PATIENCE), now


def ended(jobs: Jobs, download: Download) -> Download:
    """Wait for the end, and until nothing is done about it any more."""
    job = jobs.get(download.id)
    assert job.over.wait(PATIENCE), job.snapshot()
    return job.snapshot()


def slow(hub: LocalHub, rate: float = 8e6) -> None:
    hub.faults.rate = rate


# --- one ---


def test_a_download_from_beginning_to_end(running: Running) -> None:
    begun = running.jobs.submit(REQUEST)
    assert (begun.state in ("queued", "downloading"), begun.repo, begun.file) == (True, REPO, "m-Q4_K_M.gguf")
    assert running.jobs.unfinished == 1
    done = ended(running.jobs, begun)
    assert (done.state, done.error, done.model) == ("done", None, f"{REPO}:Q4_K_M")
    assert done.bytes == done.total == Path(done.path).stat().st_size > SIZE
    assert (done.rate, done.eta, done.license) == (0.0, None, "apache-2.0")
    assert done.revision == running.hub.catalog.models[REPO].commit
    assert Path(done.path) == running.shelf.models / REPO / "m-Q4_K_M.gguf"
    assert running.jobs.all().downloads == (done,)
    assert running.jobs.unfinished == 0


def test_it_tells_how_fast_and_how_long(running: Running) -> None:
    slow(running.hub)
    begun = running.jobs.submit(REQUEST)
    job = running.jobs.get(begun.id)
    seen = list[Download]()
    changed = threading.Event()
    with job.watched(changed.set):
        while not seen or not seen[-1].ended:
            assert not seen or changed.wait(PATIENCE)
            changed.clear()
            seen.append(job.snapshot())
    going = [each for each in seen if each.rate > 0]
    assert going
    assert all(each.eta == pytest.approx((each.total - each.bytes) / each.rate, abs=0.1) for each in going)
    assert [each.bytes for each in seen] == sorted(each.bytes for each in seen)


def test_the_same_again_is_the_same_download(running: Running) -> None:
    slow(running.hub)
    first = running.jobs.submit(REQUEST)
    assert running.jobs.submit(DownloadRequest(f"{REPO}/m-Q4_K_M.gguf")).id == first.id
    assert running.jobs.submit(DownloadRequest(REPO, quant="Q8_0")).id != first.id
    running.hub.faults.rate = None
    assert ended(running.jobs, first).state == "done"
    again = running.jobs.submit(REQUEST)
    assert (again.id, again.state) == (first.id, "done")
    running.shelf.library().remove(first.repo + ":Q4_K_M")
    anew = running.jobs.submit(REQUEST)
    assert anew.id != first.id
    assert ended(running.jobs, anew).state == "done"


def test_what_is_here_already_is_done_at_once(running: Running, starter_path: Path) -> None:
    path = running.shelf.put(starter_path.name, starter_path)
    found = running.jobs.submit(DownloadRequest(profile="starter"))
    assert (found.state, found.path, found.model) == ("done", str(path), starter_path.stem)
    assert running.jobs.submit(DownloadRequest("starter")).id == found.id


def test_two_at_once_and_the_others_wait(running: Running) -> None:
    slow(running.hub)
    begun = [running.jobs.submit(DownloadRequest(REPO, quant=quant)) for quant in ("Q4_K_M", "Q5_K_M", "Q8_0")]
    for each in begun[:2]:
        until(running.jobs.get(each.id), "downloading", beyond=0)
    assert [each.state for each in running.jobs.all().downloads] == ["queued", "downloading", "downloading"]
    running.hub.faults.rate = None
    assert [ended(running.jobs, each).state for each in begun] == ["done"] * 3


def test_versions_of_one_file_come_one_after_the_other(running: Running, tmp_path: Path) -> None:
    slow(running.hub)
    first = running.jobs.submit(REQUEST)
    until(running.jobs.get(first.id), "downloading", beyond=0)
    content = running.hub.catalog.change(REPO, "m-Q4_K_M.gguf", model(tmp_path, "newer"))
    second = running.jobs.submit(REQUEST)
    assert second.id != first.id
    assert running.jobs.get(second.id).snapshot().state == "queued"
    running.hub.faults.rate = None
    assert [ended(running.jobs, each).state for each in (first, second)] == ["done", "done"]
    assert Path(second.path).read_bytes() == content.path.read_bytes()


def test_requests_that_come_to_nothing_are_no_downloads(running: Running) -> None:
    running.hub.catalog.models[REPO].license = "llama3.2"
    with pytest.raises(LicenseNotAccepted):
        running.jobs.submit(REQUEST)
    with pytest.raises(NotFound):
        running.jobs.submit(DownloadRequest("local/absent"))
    with pytest.raises(NotFound):
        running.jobs.get("absent")
    assert running.jobs.all().downloads == ()
    assert ended(running.jobs, running.jobs.submit(DownloadRequest(REPO, accept_license=True))).state == "done"


# --- stopping ---


def test_what_is_here_of_a_stopped_download_stays(running: Running) -> None:
    slow(running.hub)
    first = running.jobs.submit(REQUEST)
    until(running.jobs.get(first.id), "downloading", beyond=1 << 20)
    stopped = running.jobs.cancel(first.id)
    assert (stopped.state, stopped.error) == ("cancelled", None)
    assert running.jobs.cancel(first.id) == stopped
    state = Partial(Path(first.path)).load()
    assert state is not None
    assert state.bytes >= 1 << 20
    running.hub.faults.rate = None
    second = running.jobs.submit(REQUEST)
    assert second.id != first.id
    assert ended(running.jobs, second).state == "done"
    assert running.sent("m-Q4_K_M.gguf") < 2 * SIZE


def test_nothing_stays_of_one_that_is_purged(running: Running) -> None:
    slow(running.hub)
    first = running.jobs.submit(REQUEST)
    until(running.jobs.get(first.id), "downloading", beyond=1 << 20)
    assert running.jobs.cancel(first.id, purge=True).state == "cancelled"
    assert Partial(Path(first.path)).load() is None
    second = running.jobs.submit(DownloadRequest(REPO, quant="Q8_0"))
    until(running.jobs.get(second.id), "downloading", beyond=1 << 20)
    running.jobs.cancel(second.id)
    assert Partial(Path(second.path)).load() is not None
    running.jobs.cancel(second.id, purge=True)
    assert Partial(Path(second.path)).load() is None


def test_one_that_waits_is_stopped_too(running: Running) -> None:
    slow(running.hub)
    begun = [running.jobs.submit(DownloadRequest(REPO, quant=quant)) for quant in ("Q4_K_M", "Q5_K_M", "Q8_0")]
    assert running.jobs.cancel(begun[2].id).state == "cancelled"
    running.hub.faults.rate = None
    assert [ended(running.jobs, each).state for each in begun] == ["done", "done", "cancelled"]


def test_one_that_is_done_stays_done(running: Running) -> None:
    done = ended(running.jobs, running.jobs.submit(REQUEST))
    assert running.jobs.cancel(done.id, purge=True) == done
    assert Path(done.path).is_file()


# --- failing ---


def test_a_failure_is_told_and_can_be_tried_again(running: Running) -> None:
    slow(running.hub)
    begun = running.jobs.submit(REQUEST)
    until(running.jobs.get(begun.id), "downloading", beyond=0)
    running.hub.faults.cut_after = 0
    running.hub.faults.rate = None
    failed = ended(running.jobs, begun)
    assert failed.error is not None
    assert (failed.state, failed.error.code) == ("failed", "hub_error")
    running.hub.faults.cut_after = None
    assert ended(running.jobs, running.jobs.submit(REQUEST)).state == "done"


def test_a_full_disk_has_a_name(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda _: 0)
    failed = ended(running.jobs, running.jobs.submit(REQUEST))
    assert failed.error is not None
    assert (failed.state, failed.error.code) == ("failed", "disk_full")


# --- the next process ---


def test_the_next_process_goes_on(running: Running) -> None:
    slow(running.hub)
    begun = running.jobs.submit(REQUEST)
    until(running.jobs.get(begun.id), "downloading", beyond=1 << 20)
    old = running.jobs
    running.restart()
    assert not old.get(begun.id).ended
    running.hub.faults.rate = None
    done = ended(running.jobs, begun)
    assert (done.state, done.id, done.created) == ("done", begun.id, begun.created)
    content = running.hub.catalog.models[REPO].files["m-Q4_K_M.gguf"]
    assert Path(done.path).read_bytes() == content.path.read_bytes()
    assert running.sent("m-Q4_K_M.gguf") < 2 * SIZE
    assert running.restart().all().downloads == (done,)


def test_one_that_was_stopped_is_not_gone_on_with(running: Running) -> None:
    slow(running.hub)
    begun = running.jobs.submit(REQUEST)
    until(running.jobs.get(begun.id), "downloading", beyond=0)
    running.jobs.cancel(begun.id)
    assert [each.state for each in running.restart().all().downloads] == ["cancelled"]
    assert running.jobs.unfinished == 0


def test_another_processs_downloads_are_its_own(running: Running) -> None:
    slow(running.hub)
    begun = running.jobs.submit(REQUEST)
    beside = running.make()
    beside.resume()
    assert beside.all().downloads == ()
    running.hub.faults.rate = None
    assert ended(running.jobs, begun).state == "done"
    later = running.make()
    later.resume()
    assert [each.id for each in later.all().downloads] == [begun.id]


def test_two_registries_with_states_of_their_own_fetch_one_file_once(running: Running, tmp_path: Path) -> None:
    slow(running.hub)
    other = running.make(tmp_path / "other")
    begun = running.jobs.submit(REQUEST)
    until(running.jobs.get(begun.id), "downloading", beyond=0)
    theirs = other.submit(REQUEST)
    assert until(other.get(theirs.id), "downloading", beyond=0).total == begun.total
    running.hub.faults.rate = None
    assert [ended(running.jobs, begun).state, ended(other, theirs).state] == ["done", "done"]
    assert running.sent("m-Q4_K_M.gguf") < 1.5 * SIZE


def test_the_last_ones_are_remembered(running: Running, monkeypatch: pytest.MonkeyPatch, starter_path: Path) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    running.shelf.put(starter_path.name, starter_path)
    first = running.jobs.submit(DownloadRequest("starter"))
    others = [
        ended(running.jobs, running.jobs.submit(DownloadRequest(REPO, quant=quant))) for quant in ("Q4_K_M", "Q8_0")
    ]
    assert [each.id for each in running.jobs.all().downloads] == [each.id for each in reversed(others)]
    with pytest.raises(NotFound):
        running.jobs.get(first.id)
    kept = {path.stem for path in (running.shelf.state / "downloads").glob("*.json")}
    assert kept == {each.id for each in others}
    assert [each.id for each in running.restart().all().downloads] == [each.id for each in reversed(others)]


def test_a_broken_record_hides_no_other(running: Running) -> None:
    done = ended(running.jobs, running.jobs.submit(REQUEST))
    folder = running.shelf.state / "downloads"
    (folder / "broken.json").write_text("{")
    (folder / "strange.json").write_text(json.dumps({"download": 1}))
    assert running.restart().all().downloads == (done,)


def test_where_nothing_can_be_kept_downloads_go_on(running: Running) -> None:
    running.shelf.state.mkdir(parents=True, exist_ok=True)
    (running.shelf.state / "downloads").write_text("in the way")
    assert ended(running.jobs, running.jobs.submit(REQUEST)).state == "done"
