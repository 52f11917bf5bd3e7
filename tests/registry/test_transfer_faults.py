"""A hub that fails while a file is fetched: in every way there is, and in some at once."""

import threading
from pathlib import Path

import pytest

from forgelm.errors import Forbidden, ForgeError, NotFound, UpstreamFailed
from forgelm.registry.hub import Hub
from forgelm.registry.ledger import BLOCK
from forgelm.registry.progress import Cancelled
from forgelm.registry.retries import Limits
from forgelm.registry.transfer import fetch
from tests.registry.contents import LARGE, SMALL
from tests.registry.fetching import FILE, QUICK, REPO, Fetching, place
from tests.registry.hub import LocalHub

# --- connections ---


def test_connections_that_break_off(large: Fetching) -> None:
    large.local.faults.cut_after = 3_000_000
    large.run()
    assert large.is_right()
    assert large.sent == len(LARGE), "what came before is kept"


def test_connections_that_break_off_at_once(small: Fetching) -> None:
    small.local.faults.cut_after = 0
    assert "the connection broke off" in str(small.failure())
    assert len(small.local.log.requests("cdn")) == QUICK.attempts


def test_a_connection_that_goes_silent(large: Fetching) -> None:
    large.limits = Limits(stall=0.3, attempts=4, first_wait=0.01)
    large.local.faults.hang_after, large.local.faults.hangs = 1_000_000, 3
    large.run()
    assert large.is_right()


def test_a_server_that_goes_silent_for_good(small: Fetching) -> None:
    small.limits = Limits(stall=0.1, attempts=3, first_wait=0.01)
    small.local.faults.hang_after = 1000
    assert "no answer in time" in str(small.failure())
    state = small.partial.load()
    assert state is not None
    assert state.bytes == 3 * 1000


def test_a_server_that_fails_for_a_while(large: Fetching) -> None:
    for status in (500, 502, 503, 504):
        large.local.faults.fail(status, times=2)
    large.limits = Limits(attempts=10, first_wait=0.01)
    large.run()
    assert large.is_right()


def test_a_server_that_fails(small: Fetching) -> None:
    small.local.faults.fail(503, times=100)
    assert f"{small.local.endpoint}: the server fails (HTTP 503)" in str(small.failure())


@pytest.mark.parametrize("origin", ["hub", "cdn"])
def test_a_server_that_asks_to_wait(small: Fetching, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    waits: list[float] = []
    wait = threading.Event.wait
    monkeypatch.setattr(
        threading.Event,
        "wait",
        lambda event, seconds=None: waits.append(seconds) or wait(event, min(seconds or 0, 0.2)),
    )
    path = "/resolve/" if origin == "hub" else ""
    small.local.faults.fail(429, origin=origin, path=path, Retry_After=77)  # type: ignore[arg-type]
    small.run()
    assert small.is_right()
    assert waits.count(77.0) == 1


def test_waiting_ends_with_the_wish(small: Fetching) -> None:
    small.local.faults.fail(429, times=100, Retry_After=60)
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(Cancelled):
        small.run(cancel)


# --- addresses ---


def test_addresses_that_expire(large: Fetching) -> None:
    """All at once, while all connections are at work."""
    large.local.faults.rate = 60e6
    threading.Timer(0.3, large.local.faults.expire).start()
    threading.Timer(0.6, large.local.faults.expire).start()
    large.run()
    assert large.is_right()
    # One of the first session's, one after each end; and the repository isn't asked for again.
    assert len(large.local.log.requests("hub", "HEAD")) == 3


def test_addresses_that_are_never_good(small: Fetching) -> None:
    small.local.faults.expires_in = -10
    assert "the file's address isn't good any more (HTTP 403)" in str(small.failure())


@pytest.mark.parametrize(("change", "kind"), [("gated", Forbidden), ("gone", NotFound)])
def test_access_that_is_taken_away_meanwhile(large: Fetching, change: str, kind: type[ForgeError]) -> None:
    large.local.faults.rate = 60e6
    model = large.local.catalog.models[REPO]

    def take() -> None:
        if change == "gated":
            model.gated = "manual"
        else:
            del model.files[FILE]
        large.local.faults.expire()

    threading.Timer(0.3, take).start()
    assert isinstance(large.failure(), kind)
    assert large.partial.load() is not None, "what is here stays"


def test_a_gated_file_without_a_token(local: LocalHub, tmp_path: Path) -> None:
    """The repository was looked at while it was open."""
    fetching = place(local, tmp_path / "models", SMALL)
    hub = Hub(endpoint=local.endpoint, limits=QUICK)
    repo = hub.repo(REPO)
    local.catalog.models[REPO].gated = "auto"
    with pytest.raises(Forbidden, match="accept its terms at"):
        fetch(hub, repo, repo.file(FILE), fetching.models, cancel=threading.Event(), progress=lambda _: None)


# --- versions ---


def test_an_etag_that_changes_meanwhile(large: Fetching) -> None:
    """Of a file whose sha256 is known, and which stays the same: a CDN whose caches disagree."""
    large.local.faults.rate, large.local.faults.change_after = 200e6, 30_000_000
    large.run()
    assert large.is_right()
    assert large.sent < len(LARGE) + BLOCK


def test_an_etag_that_changed_between_two_sessions(large: Fetching) -> None:
    large.local.faults.rate = 60e6
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate, large.local.faults.etag = 200e6, "moved"
    before = large.partial.load()
    assert before is not None
    large.local.log.clear()
    large.run()
    assert large.is_right()
    assert large.sent < len(LARGE) - before.bytes + BLOCK


def test_another_file_behind_the_same_address(large: Fetching) -> None:
    """Half of it is of one file and half of another: the sha256 tells, and all of it is fetched again."""
    other = large.local.catalog.keep("other.gguf", LARGE[::-1])
    large.local.swaps[large.content.sha256] = other
    large.local.faults.rate = 60e6
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate = None
    large.local.swaps.clear()
    large.run()
    assert large.is_right()


def test_a_small_file_that_changed_between_two_sessions(local: LocalHub, tmp_path: Path) -> None:
    """Outside LFS nothing but the ETag tells."""
    local.add(REPO, {"notes.txt": b"a" * 200_000})
    hub = Hub(endpoint=local.endpoint, limits=QUICK)
    repo = hub.repo(REPO)
    local.faults.cut_after = 60_000
    local.faults.fail(500, times=0)
    hub_once = Hub(endpoint=local.endpoint, limits=Limits(attempts=1))
    with pytest.raises(UpstreamFailed):
        fetch(hub_once, repo, repo.file("notes.txt"), tmp_path, cancel=threading.Event(), progress=lambda _: None)
    local.faults.cut_after = None
    local.catalog.models[REPO].revisions[repo.commit]["notes.txt"] = local.catalog.keep("notes.txt", b"b" * 200_000)
    path = fetch(hub, repo, repo.file("notes.txt"), tmp_path, cancel=threading.Event(), progress=lambda _: None)
    assert path.read_bytes() == b"b" * 200_000


@pytest.mark.parametrize("knob", ["weak", "no_etag"])
def test_servers_without_a_strong_etag(large: Fetching, knob: str) -> None:
    setattr(large.local.faults, knob, True)
    large.local.faults.cut_after = 5_000_000
    large.run()
    assert large.is_right()
    assert not any("if-range" in seen.headers for seen in large.local.log.requests())


# --- content ---


def test_a_wrong_content_is_fetched_once_more(large: Fetching) -> None:
    large.local.faults.corrupt = 1
    large.run()
    assert large.is_right()
    assert large.sent == 2 * len(LARGE)


def test_a_wrong_content_twice_is_an_error(small: Fetching) -> None:
    small.local.faults.corrupt = 100
    error = small.failure()
    assert isinstance(error, UpstreamFailed)
    assert "came with another sha256" in str(error)
    assert not small.partial.data.exists(), "nothing of it is kept"
    assert small.sent == 2 * len(SMALL)


def test_what_was_damaged_on_this_disk_is_fetched_again(large: Fetching) -> None:
    large.local.faults.rate = 60e6
    cancel = threading.Event()
    threading.Timer(0.4, cancel.set).start()
    with pytest.raises(Cancelled):
        large.run(cancel)
    large.local.faults.rate = None
    with large.partial.data.open("r+b") as data:
        data.write(b"damaged")
    large.run()
    assert large.is_right()


# --- ranges ---


def test_a_server_without_ranges(large: Fetching) -> None:
    large.local.faults.ranges = False
    large.run()
    assert large.is_right()
    assert "range" not in large.local.log.requests("cdn")[-1].headers


def test_a_server_without_ranges_that_breaks_off(small: Fetching) -> None:
    """It begins at the beginning."""
    small.local.faults.ranges = False
    small.local.faults.cut_after, small.local.faults.cuts = 1_500_000, 1
    small.run()
    assert small.is_right()


def test_a_server_that_loses_its_ranges(large: Fetching) -> None:
    def lose() -> None:
        large.local.faults.ranges = False

    large.local.faults.rate = 60e6
    threading.Timer(0.4, lose).start()
    large.run()
    assert large.is_right()


def test_a_server_without_ranges_that_always_breaks_off(small: Fetching) -> None:
    small.local.faults.ranges = False
    small.local.faults.cut_after = 1_500_000
    assert "the connection broke off" in str(small.failure())


def test_a_server_that_sends_another_range(small: Fetching) -> None:
    small.local.faults.range_shift = 100
    small.local.faults.cut_after = 500_000
    assert "sends another range" in str(small.failure())


# --- lies ---


@pytest.mark.parametrize(
    ("knob", "value"), [("linked_size", 5), ("range_total", len(SMALL) + 1), ("linked_etag", f'"{"ab" * 32}"')]
)
def test_a_server_that_contradicts_the_hub(small: Fetching, knob: str, value: object) -> None:
    setattr(small.local.faults, knob, value)
    error = small.failure()
    assert isinstance(error, UpstreamFailed)
    assert "should have 3000000 bytes" in str(error) or "has another model.gguf than it lists" in str(error)
    assert small.sent == 0 or knob == "range_total"


def test_a_file_that_is_shorter_than_it_should_be(small: Fetching) -> None:
    small.local.swaps[small.content.sha256] = small.local.catalog.keep("short.gguf", SMALL[:1000])
    assert "should have 3000000 bytes" in str(small.failure())


def test_a_hub_that_tells_nothing_of_the_content(small: Fetching) -> None:
    """A mirror without the hub's own headers: the listing's sha256 does."""
    small.local.faults.linked_etag = ""
    small.run()
    assert small.is_right()


def test_everything_at_once(large: Fetching) -> None:
    large.limits = Limits(stall=0.3, attempts=20, first_wait=0.01, longest_wait=0.05)
    faults = large.local.faults
    faults.rate, faults.cut_after, faults.hang_after, faults.hangs = 100e6, 4_000_000, 3_000_000, 2
    faults.fail(503, times=3)
    faults.fail(429, times=2, Retry_After=0)
    faults.fail(500, times=1, origin="hub", path="/resolve/")
    faults.change_after = 20_000_000
    threading.Timer(0.3, faults.expire).start()
    large.run()
    assert large.is_right()
