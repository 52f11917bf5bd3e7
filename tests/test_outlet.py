"""Lines for a reader that is slow, that stalls, that has left: whoever writes goes on, and what is lost is counted.

On real pipes, sockets and terminals. Nothing reads meanwhile, so a write that waits would never return.
"""

import os
import pty
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm import outlet
from forgelm.outlet import Outlet, put


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's ends, for reading and for writing."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:  # the test has closed it
            continue


def numbered(number: int, size: int = 100) -> bytes:
    return f"{number:06} ".encode().ljust(size - 1, b".") + b"\n"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read_lines(reader: int, last: bytes) -> list[bytes]:
    """Read until a line begins with `last`."""
    data = b""
    while True:
        data += os.read(reader, 1 << 16)
        lines = data.split(b"\n")
        if any(line.startswith(last) for line in lines[:-1]):
            return lines[:-1]


def test_a_line_is_written_by_whoever_writes_it(pipe: tuple[int, int]) -> None:
    """No thread has to come first: it is out when the process dies."""
    reader, writer = pipe
    before = threading.active_count()
    Outlet(writer).write(b"one line\n")
    assert threading.active_count() == before
    assert os.read(reader, 100) == b"one line\n"


def test_a_stalled_pipe_keeps_nobody_waiting_and_loses_nothing_that_has_room(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Outlet(writer)
    count = 5_000  # 500 KB: a pipe holds 64
    for number in range(count):
        out.write(numbered(number))
    lines = read_lines(reader, b"%06d" % (count - 1))
    assert [int(line[:6]) for line in lines] == list(range(count))


def test_what_has_no_room_is_dropped_whole_and_counted(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "BACKLOG_BYTES", 10_000)
    reader, writer = pipe
    out = Outlet(writer, lambda count: b"dropped %d\n" % count)
    count = 3_000
    for number in range(count):
        out.write(numbered(number))
    lines = read_lines(reader, b"dropped")
    kept, dropped = lines[:-1], int(lines[-1].split()[1])
    assert len(kept) + dropped == count
    assert 0 < dropped < count
    assert [int(line[:6]) for line in kept] == list(range(len(kept)))
    assert {len(line) for line in kept} == {99}
    out.flush()
    out.write(b"and then\n")
    assert read_lines(reader, b"and then") == [b"and then"]


def test_a_line_that_is_longer_than_a_pipe(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Outlet(writer)
    out.write(b"x" * 300_000 + b"\n")
    out.write(b"next\n")
    assert read_lines(reader, b"next") == [b"x" * 300_000, b"next"]


def test_several_threads_on_a_slow_pipe(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Outlet(writer)

    def work(which: int) -> None:
        for number in range(1_000):
            out.write(b"%d %s" % (which, numbered(number)))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.write(b"end\n")
    lines = read_lines(reader, b"end")[:-1]
    for which in range(4):
        assert [int(line[2:8]) for line in lines if line.startswith(b"%d " % which)] == list(range(1_000))


def test_a_reader_that_left(pipe: tuple[int, int]) -> None:
    """While nothing waits, and while a backlog does."""
    reader, writer = pipe
    out = Outlet(writer)
    for number in range(2_000):
        out.write(numbered(number))
    os.close(reader)
    out.flush()
    assert not out.stalled
    out.write(b"to nobody\n")
    assert not out.stalled
    Outlet(writer).write(b"nor here\n")


def test_a_socket_as_systemd_gives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        out = Outlet(theirs.fileno())
        for number in range(5_000):
            out.write(numbered(number))
        assert theirs.getblocking()
        lines = read_lines(ours.fileno(), b"004999")
        out.close()
        assert [int(line[:6]) for line in lines] == list(range(5_000))


def test_a_terminal_that_is_held(tmp_path: Path) -> None:
    """Nobody reads its other side."""
    ours, theirs = pty.openpty()
    out = Outlet(theirs)
    for number in range(1_000):
        out.write(numbered(number))
    assert out.stalled
    data = b""
    while b"000999" not in data:
        data += os.read(ours, 1 << 16)
    numbers = [int(line[:6]) for line in data.split(b"\r\n") if line]
    assert numbers == list(range(1_000))
    os.close(ours)
    os.close(theirs)


def test_a_file_is_appended_to_by_all_who_have_it(tmp_path: Path) -> None:
    """Opened again it would have a position of its own, and one would overwrite the other."""
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        out = Outlet(file.fileno())
        out.write(b"one\n")
        file.write(b"two\n")
        out.write(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_the_descriptor_of_others_stays_as_it_is(pipe: tuple[int, int]) -> None:
    _, writer = pipe
    Outlet(writer).write(b"x\n")
    assert os.get_blocking(writer)


def test_closed_it_writes_nowhere(pipe: tuple[int, int], tmp_path: Path) -> None:
    """The number of its descriptor may be another file's by then."""
    reader, writer = pipe
    out = Outlet(writer)
    out.write(b"before\n")
    before = descriptors()
    out.close()
    assert descriptors() == before - 1
    with (tmp_path / "other").open("wb"):
        out.write(b"after\n")
    assert os.read(reader, 100) == b"before\n"
    assert (tmp_path / "other").read_bytes() == b""


def test_words_on_a_stream_that_stalls(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with os.fdopen(os.dup(writer), "w") as stream:
        os.set_blocking(writer, False)
        filled = 0
        try:
            while True:
                filled += os.write(writer, b"." * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        put("said", stream)
        data = b""
        while not data.endswith(b"said\n"):
            data += os.read(reader, 1 << 16)
        assert len(data) == filled + 5


def test_words_on_a_stream_that_is_closed(tmp_path: Path) -> None:
    stream = (tmp_path / "out").open("w")
    stream.close()
    put("nobody hears it", stream)
