"""`forgelm bench table` as a process: what is here is measured, what isn't says so, a README is filled."""

from pathlib import Path

import msgspec
import pytest

from forgelm.bench.result import Result
from tests.bench.rows import MACHINE
from tests.program import forgelm

FAKE = '{"step": 0.001, "context": 8192}'
BLOCK = "# Title\n<!-- table -->\n<!-- /table -->\n"


@pytest.mark.server
def test_one_is_measured_and_the_other_is_not_here(tmp_path: Path, starter_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(BLOCK)
    variables = {"FORGELM_FAKE_ENGINE": FAKE, "FORGELM_MODELS": str(starter_path.parent)}
    run = forgelm("bench", "table", "--profiles", "turbo_4b,starter", "--write", str(readme), env=variables)
    assert run.returncode == 0, run.stderr
    assert "turbo_4b: not measured: its model isn't here: `forgelm pull turbo_4b` fetches it" in run.stderr
    found = msgspec.json.decode(run.stdout.splitlines()[-1], type=Result)
    assert (found.bench, found.subject.profile, len(found.rows)) == ("table", "starter", 3)
    assert type(found.machine) is type(MACHINE)
    written = readme.read_text()
    assert written.startswith("# Title\n<!-- table -->\n| profile |")
    assert "| turbo_4b | Qwen3.5-4B-Q4_K_M | not measured |" in written
    assert "| starter | SmolLM2-135M-Instruct.Q4_1 | " in written
    assert written.split("<!-- table -->\n")[1].split("<!-- /table -->")[0] in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profiles", "no_such"], "no profile named 'no_such'"),
        (["--profiles", ","], "no profile is named"),
        (["--write", "no/such"], "no/such can't be read"),
    ],
)
def test_what_can_not_be_is_one_line(arguments: list[str], said: str) -> None:
    run = forgelm("bench", "table", *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_file_without_a_block_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Title\n")
    run = forgelm("bench", "table", "--profiles", "starter", "--write", str(path))
    assert run.returncode == 2
    assert "there must be one block" in run.stderr
    assert path.read_text() == "# Title\n"
