"""`forgelm bench report` as a process, and its page in a browser."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from forgelm.bench.result import to_line
from tests.bench.rows import result, row
from tests.program import forgelm

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    evil = row(workload="<script>document.title='owned'</script>", clients=8)
    path.write_text(f"a table\n{to_line(result(row(), evil, row(clients=16)))}\n")
    return path


def test_a_page_is_written(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run = forgelm("bench", "report", str(results), "--output", str(page))
    assert (run.returncode, run.stdout) == (0, "")
    assert "Throughput against concurrency" in page.read_text()
    assert page.read_text().count("<svg ") == 4


def test_markdown_goes_to_stdout(results: Path) -> None:
    run = forgelm("bench", "report", "--markdown", str(results))
    assert run.returncode == 0
    assert "| workload | load |" in run.stdout
    assert "## Four questions" in run.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_a_browser_shows_it_without_running_anything(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    forgelm("bench", "report", str(results), "--output", str(page))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>ForgeLM benchmark report</title>" in shown
    assert shown.count("<polyline") >= 3
    assert "&lt;script&gt;document.title" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "holds no result"),
        ('{"bench":"run","format":7,"rows":[]}', "written by a later version of forgelm"),
        ('{"bench":"run","format":1,"rows":', "has a result that can't be read"),
    ],
)
def test_what_can_not_be_read_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    run = forgelm("bench", "report", str(path), "--output", str(tmp_path / "page.html"))
    assert run.returncode == 2
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_a_place_that_can_not_be_written_is_one_line(results: Path, tmp_path: Path) -> None:
    run = forgelm("bench", "report", str(results), "--output", str(tmp_path / "none" / "page.html"))
    assert run.returncode == 2
    assert "can't be written" in run.stderr


def test_a_real_line_of_json_comes_back(results: Path) -> None:
    assert json.loads(results.read_text().splitlines()[1])["format"] == 1
