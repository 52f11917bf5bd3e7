"""What servers take, on real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from forgelm.bench.watching import Watch, is_here, tree_of, watch_server, watch_tree
from forgelm.ipc.status import ProcessStatus, ServerStatus
from forgelm.processes import read_process
from tests.bench.other import other

PARENT = """
import subprocess, sys
program = "import sys; held = bytearray(60_000_000); print(1, flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """A process and its child, which holds 60 MB."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    child = int(process.stdout.readline())
    try:
        yield process.pid, child
    finally:
        process.communicate("")


def test_all_processes_of_a_server_count() -> None:
    with family() as (parent, child):
        assert tree_of(parent) == [parent, child]
        with (watch := watch_tree(parent)):
            pass
        alone = read_process(child)
    assert alone
    assert watch.peaks.rss
    assert watch.peaks.rss > alone.rss_bytes > 60_000_000


def test_the_most_counts_and_each_period_begins_anew() -> None:
    pids = [os.getpid()]
    watch = Watch(lambda: pids, cards=False)
    with watch:
        held = bytearray(80_000_000)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.5)
        del held
    first = watch.peaks.rss
    with watch:
        pass
    assert first
    assert watch.peaks.rss
    assert first - watch.peaks.rss > 40_000_000
    pids.clear()
    with watch:
        pass
    assert watch.peaks.rss is None


def test_whoever_listens_here_is_watched() -> None:
    with other() as server:
        watch = watch_server(server.url)
        assert watch is not None
        with watch:
            pass
    assert watch.peaks.rss
    assert watch.peaks.rss > 10_000_000


@pytest.mark.parametrize("url", ["http://192.0.2.1:80/v1", "http://no-such-host.invalid/v1", "http://127.0.0.1:1/v1"])
def test_what_is_elsewhere_or_not_there_is_not(url: str) -> None:
    assert watch_server(url) is None


@pytest.mark.parametrize(
    ("host", "here"), [("localhost", True), ("127.0.0.2", True), ("::1", True), ("192.0.2.1", False)]
)
def test_addresses_of_this_machine(host: str, here: bool) -> None:
    assert is_here(host) == here


def status(*processes: ProcessStatus) -> ServerStatus:
    none = {"prefill_tokens_per_second": 0, "decode_tokens_per_second": 0, "running": 0, "waiting": 0, "restarts": 0}
    bare = {**none, "version": "1", "started_at": 0, "state": "ready", "percent": None, "reason": "", "cache": None,
            **dict.fromkeys(("models", "processes", "gpus", "requests"), ())}  # fmt: skip
    return msgspec.structs.replace(msgspec.convert(bare, ServerStatus), processes=processes)


def test_a_servers_own_word_goes_before_whoever_listens() -> None:
    """Behind a proxy of ours the port is the proxy's."""
    with other() as server, family() as (parent, _):
        seen = read_process(parent)
        assert seen
        said = status(ProcessStatus("api", parent, seen.rss_bytes, 0.0))
        watch = watch_server(server.url, said)
        assert watch is not None
        with watch:
            pass
        expected = sum(use.rss_bytes for pid in tree_of(parent) if (use := read_process(pid)))
        assert watch.peaks.rss == pytest.approx(expected, rel=0.1)


def test_process_ids_of_a_container_mean_nothing_here() -> None:
    """Process 1 is another one there: its size tells."""
    with other() as server:
        own = read_process(os.getpid())
        assert own
        said = status(ProcessStatus("api", os.getppid(), 50 * own.rss_bytes, 0.0))
        watch = watch_server(server.url, said)
        assert watch is not None
        with watch:
            pass
        assert watch.peaks.rss
        assert watch.peaks.rss >= own.rss_bytes / 2
