"""One file, fetched: in one piece and several, once and again, alone and beside others."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forgelm.errors import InvalidRequest
from forgelm.registry.hub import Hub
from forgelm.registry.ledger import BLOCK
from forgelm.registry.partial import Origin, read_origin, write_origin
from forgelm.registry.progress import Cancelled, Progress
from forgelm.registry.transfer import fetch
from tests.registry.contents import LARGE, SMALL
from tests.registry.fetching import FILE, QUICK, REPO, Fetching, place
from tests.registry.hub import LocalHub


def until(condition: Callable[[], bool]) -> None:
    """Wait, for half a minute at most, until `condition` holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.005)


def test_a_small_file(small: Fetching) -> None:
    assert small.run() == small.target
    assert small.is_right()
    assert small.sent == len(SMALL)
    assert len(small.local.log.requests("cdn")) == 2
    model = small.local.catalog.models[REPO]
    assert read_origin(small.target) == Origin(REPO, FILE, model.commit, len(SMALL), small.content.sha256, "apache-2.0")


def test_a_large_file_by_several_connections(large: Fetching) -> None:
    large.local.faults.rate = 60e6
    large.run(connections=4)
    assert len({seen.client for seen in large.local.log.requests("cdn")}) == 4
    assert large.is_right()
    assert large.sent == len(LARGE)
    requests = large.local.log.requests("cdn")
    assert len({seen.headers["range"] for seen in requests}) == len(requests)
    assert {seen.headers.get("if-range") for seen in requests} <= {None, large.content.etag}
    assert requests[-1].headers["if-range"] == large.content.etag


def test_the_token_does_not_go_with_the_file(large: Fetching) -> None:
    large.local.tokens = {"secret"}
    large.run(token="secret")
    assert {seen.authorization for seen in large.local.log.requests("hub")} == {"Bearer secret"}
    assert {seen.authorization for seen in large.local.log.requests("cdn")} == {None}


@pytest.mark.parametrize("connections", [1, 2, 16, 1000])
def test_any_number_of_connections(large: Fetching, connections: int) -> None:
    large.run(connections=connections)
    assert large.is_right()


def test_files_that_the_hub_sends_itself(local: LocalHub, tmp_path: Path) -> None:
    """Small ones outside LFS, without a sha256, and in a folder."""
    local.tokens = {"secret"}
    local.add("own/private", {"sub/config.json": b'{"a": 1}', "empty.txt": b""}, private=True, allowed={"secret"})
    hub = Hub(endpoint=local.endpoint, token="secret", limits=QUICK)
    repo = hub.repo("own/private")
    for file in repo.files:
        path = fetch(hub, repo, file, tmp_path / "models", cancel=threading.Event(), progress=lambda _: None)
        assert path == tmp_path / "models" / "own" / "private" / file.path
        assert len(path.read_bytes()) == file.size
    assert (tmp_path / "models/own/private/sub/config.json").read_bytes() == b'{"a": 1}'


def test_an_empty_model(local: LocalHub, tmp_path: Path) -> None:
    fetching = place(local, tmp_path / "models", b"")
    fetching.run()
    assert fetching.is_right()


def test_progress(large: Fetching) -> None:
    large.local.faults.rate = 100e6
    large.run()
    assert large.states[0] == "downloading"
    downloading = [each.bytes for each in large.told if each.state == "downloading"]
    assert downloading == sorted(downloading)
    assert 0 < downloading[-1] < len(LARGE)
    assert {each.total for each in large.told} == {len(LARGE)}


def test_a_model_that_is_here_costs_nothing(small: Fetching) -> None:
    small.run()
    small.local.log.clear()
    before = small.target.stat()
    small.run()
    assert small.local.log.requests("cdn") == []
    assert small.local.log.requests("hub", "HEAD") == []
    assert small.target.stat() == before


def test_a_new_version_takes_the_place_of_the_old_one(small: Fetching) -> None:
    small.run()
    old = small.target.open("rb")
    small.content = small.local.catalog.change(REPO, FILE, SMALL[::-1])
    small.run()
    assert small.is_right()
    origin = read_origin(small.target)
    assert origin is not None
    assert origin.sha256 == small.content.sha256
    with old:
        assert old.read() == SMALL, "who reads the old one goes on with it"


def test_a_file_that_somebody_put_here_is_taken_for_what_it_is(small: Fetching) -> None:
    small.target.parent.mkdir(parents=True)
    small.target.write_bytes(SMALL)
    small.run()
    assert small.local.log.requests("cdn") == []
    origin = read_origin(small.target)
    assert origin is not None
    assert origin.sha256 == small.content.sha256


@pytest.mark.parametrize("content", [SMALL[::-1], SMALL[:-1]])
def test_a_file_that_somebody_put_here_and_is_another_is_replaced(small: Fetching, content: bytes) -> None:
    small.target.parent.mkdir(parents=True)
    small.target.write_bytes(content)
    small.run()
    assert small.is_right()


def test_a_process_that_died_before_the_last_rename(small: Fetching) -> None:
    """The old version still bears the name; the origin is of the new one, which lies beside it."""
    small.target.parent.mkdir(parents=True)
    small.target.write_bytes(SMALL[::-1])
    write_origin(small.target, Origin(REPO, FILE, "c0ffee", len(SMALL), small.content.sha256))
    small.partial.data.write_bytes(SMALL)
    small.run()
    assert small.is_right()


# --- stopping and going on ---


def test_cancelling_keeps_what_is_here(large: Fetching) -> None:
    large.local.faults.rate = 40e6
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    state = large.partial.load()
    assert state is not None
    assert 0 < state.bytes < len(LARGE)
    assert large.visible() == []
    before = large.sent
    large.local.faults.rate = None
    large.run()
    assert large.is_right()
    assert large.sent - before == len(LARGE) - state.bytes, "nothing is fetched twice"


@pytest.mark.parametrize(("fault", "value"), [("hang_after", 100_000), ("latency", 20.0)])
def test_cancelling_does_not_wait_for_a_server(large: Fetching, fault: str, value: float) -> None:
    hub = Hub(endpoint=large.local.endpoint)
    repo = hub.repo(REPO)
    setattr(large.local.faults, fault, value)
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        fetch(hub, repo, repo.file(FILE), large.models, cancel=cancel, progress=large.told.append)
    # Not a measurement: the server would keep it waiting for many times that.
    assert time.monotonic() - began < 10


def test_whoever_watches_may_end_it(large: Fetching) -> None:
    """As Ctrl-C does in a command."""
    large.local.faults.rate = 40e6
    hub = Hub(endpoint=large.local.endpoint, limits=QUICK)
    repo = hub.repo(REPO)

    def interrupt(progress: Progress) -> None:
        if progress.bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(hub, repo, repo.file(FILE), large.models, cancel=threading.Event(), progress=interrupt)
    state = large.partial.load()
    assert state is not None
    assert state.bytes > 0


def test_a_part_of_another_version_is_thrown_away(large: Fetching) -> None:
    large.local.faults.rate = 40e6
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate = None
    large.content = large.local.catalog.change(REPO, FILE, LARGE[::-1])
    large.run()
    assert large.is_right()
    assert large.sent == len(LARGE)


def test_the_same_file_at_a_new_commit_goes_on(large: Fetching) -> None:
    large.local.faults.rate = 40e6
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate = None
    large.local.catalog.change(REPO, "README.md", b"Better explained")
    large.run()
    assert large.is_right()
    assert large.sent < len(LARGE) + BLOCK
    origin = read_origin(large.target)
    assert origin is not None
    assert origin.revision == large.local.catalog.models[REPO].commit


def test_after_a_power_cut_only_what_was_synced_is_kept(large: Fetching) -> None:
    """The kernel had written the state, and of the data what it liked."""
    large.local.faults.rate = 40e6
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate = None
    state = large.partial.load()
    assert state is not None
    synced = state.done[0][1] // 2
    with large.partial.data.open("r+b") as data:
        data.seek(synced)
        data.write(bytes(state.done[-1][1] - synced))
    text = (
        large.partial.state.read_text()
        .replace(state.boot, "an earlier boot")
        .replace('"synced":[]', f'"synced":[[0,{synced}]]')
    )
    large.partial.state.write_text(text)
    before = large.sent
    large.run()
    assert large.is_right()
    assert large.sent - before == len(LARGE) - synced


def test_what_is_synced_is_remembered(large: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgelm.registry.readers.SYNC_SECONDS", 0.1)
    large.local.faults.rate = 40e6
    cancel = threading.Event()
    threading.Timer(0.8, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    state = large.partial.load()
    assert state is not None
    assert 0 < sum(stop - start for start, stop in state.synced) <= state.bytes


# --- several at once ---


def test_two_threads_fetch_one_file_once(large: Fetching) -> None:
    large.local.faults.rate = 100e6
    other = Fetching(large.local, large.models, large.content)
    thread = threading.Thread(target=other.run)
    thread.start()
    large.run()
    thread.join()
    assert large.is_right()
    assert large.sent == len(LARGE)
    waited = large if "waiting" in large.states else other
    assert any(0 < each.bytes < len(LARGE) for each in waited.told if each.state == "waiting")


def test_who_waits_can_be_cancelled(large: Fetching) -> None:
    large.local.faults.rate = 20e6
    with large.child():
        until(lambda: large.sent > 1_000_000)
        cancel = threading.Event()
        threading.Timer(0.3, cancel.set).start()
        with pytest.raises(Cancelled):
            large.run(cancel)
    assert large.states == ["waiting"]


def test_different_files_are_fetched_side_by_side(local: LocalHub, tmp_path: Path) -> None:
    local.add(REPO, {f"{number}.gguf": os.urandom(500_000) for number in range(6)})
    hub = Hub(endpoint=local.endpoint, limits=QUICK)
    repo = hub.repo(REPO)

    def one(number: int) -> None:
        file = repo.file(f"{number}.gguf")
        fetch(hub, repo, file, tmp_path / "models", cancel=threading.Event(), progress=lambda _: None)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, content in local.catalog.models[REPO].files.items():
        assert (tmp_path / "models" / REPO / name).read_bytes() == content.path.read_bytes()


# --- names ---


@pytest.mark.parametrize(
    "name",
    ["../../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", ".hidden.gguf", "a\\..\\evil.gguf", "sub/.x.gguf"],
)
def test_a_name_that_would_leave_the_folder(local: LocalHub, tmp_path: Path, name: str) -> None:
    local.add(REPO, {name: b"evil"})
    hub = Hub(endpoint=local.endpoint, limits=QUICK)
    repo = hub.repo(REPO)
    with pytest.raises(InvalidRequest):
        fetch(hub, repo, repo.file(name), tmp_path / "models", cancel=threading.Event(), progress=lambda _: None)
    assert not (tmp_path / "models").exists()
    assert local.log.requests("cdn") == []
