"""Standard streams that whoever starts the program has closed, as `>&-` and some supervisors do."""

import subprocess
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.program import FORGELM, PATIENCE, environment

pytestmark = pytest.mark.server


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["models", "verify", "rm m --yes", "pull owner/rep --yes"])
def test_closed_streams(desk: Desk, qwen35_path: Path, closed: str, command: str) -> None:
    """Python has None for them, which has no `isatty`; and a model's file would get their number."""
    desk.hub.add("owner/rep", {"m.gguf": qwen35_path})
    desk.shelf.put("m.gguf", qwen35_path)
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *FORGELM, *command.split()],
        env=environment(**desk.variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    if command.startswith("pull"):
        assert (desk.shelf.models / "owner/rep/m.gguf").read_bytes() == qwen35_path.read_bytes()
