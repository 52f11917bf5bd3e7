"""Models that can't be read while all are verified."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.program import PATIENCE

pytestmark = pytest.mark.server


def test_the_others_are_checked_all_the_same(desk: Desk, qwen35_path: Path) -> None:
    """One model deleted in the meantime ended the whole run, and what came after it wasn't looked at."""
    first, gone, last = (desk.shelf.models / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    desk.shelf.put("c.gguf", qwen35_path)
    desk.shelf.put("b.gguf", qwen35_path)
    # So large that the next one can be deleted while this is hashed.
    first.write_bytes(qwen35_path.read_bytes())
    with first.open("r+b") as file:
        file.truncate(3 << 30)
    process = desk.start("verify")
    try:
        wait_until_hashing(process, first)
        gone.unlink()
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    said = {line.split()[1].rstrip(":"): line.split()[0] for line in output.splitlines()}
    assert said == {"a": "unknown", "b": "wrong", "c": "unknown"}
    assert process.returncode == 1
    assert last.exists()


def wait_until_hashing(process: subprocess.Popen[str], path: Path) -> None:
    """Until the process has the file open, which it reads in another step than the headers."""
    folder, end = Path(f"/proc/{process.pid}/fd"), time.monotonic() + PATIENCE
    seen = 0
    while seen < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        seen = seen + 1 if any(each.exists() and each.resolve() == path for each in folder.iterdir()) else 0
        time.sleep(0.02)
