"""What processes take, of real ones and of made-up entries of /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forgelm.processes import read_process

WORK = """
import sys, time
held = bytearray(64 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
while time.process_time() < 0.3:
    pass
print("done", flush=True)
input()
"""


def test_memory_and_cpu_time_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        use = read_process(child.pid)
        assert use is not None
        assert 64 << 20 < use.rss_bytes < 160 << 20
        # Its clock ticks a hundred times a second.
        assert 0.28 <= use.cpu_seconds < 5.0
        child.communicate(b"\n")
    assert read_process(child.pid) is None


def test_one_that_nobody_has_waited_for_is_gone_already() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read_process(child.pid) is None
    child.wait()


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_no_such_process(pid: int) -> None:
    assert read_process(pid) is None


def test_a_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    """A program may call itself what it likes, and the fields after it are counted from the last bracket."""
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8, "3", "0"]
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b) {' '.join(fields)}\n")
    use = read_process(7, tmp_path)
    assert use is not None
    assert use.rss_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    assert use.cpu_seconds == 200 / os.sysconf("SC_CLK_TCK")


def test_without_proc_it_comes_from_psutil(tmp_path: Path) -> None:
    mine = read_process(os.getpid(), tmp_path)
    assert mine is not None
    assert mine.rss_bytes > 1 << 20
    assert mine.cpu_seconds > 0
    assert read_process(2**22 + 1, tmp_path) is None
