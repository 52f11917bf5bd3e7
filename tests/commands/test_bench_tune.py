"""`forgelm bench tune` as a process: what it prints and writes, how it goes on after a kill, what it refuses."""

import json
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from forgelm.bench.result import Result
from forgelm.bench.tuning_rows import lines
from forgelm.profiles import read_profile
from tests import models
from tests.processes.serving import alive, until
from tests.program import FORGELM, ROOT, environment, forgelm

pytestmark = pytest.mark.server

PROFILE = """
name = "modest"
[model]
id = "modest"
file = "{file}"
[engine]
device = "cpu"
context = 1024
parallel = 4
n_batch = 512
n_ubatch = 256
threads = 1
omp_wait = "passive"
"""
TINY = (
    "--pairs", "6", "--clients", "2", "--prompt-tokens", "16", "--output-tokens", "4", "--ttft-tokens", "32",
    "--no-ceiling",
)  # fmt: skip
FAKE = {"FORGELM_FAKE_ENGINE": '{"step": 0.001, "context": 4096}'}


class Desk:
    """A profile, and where the command writes."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.profile = directory / "modest.toml"
        self.profile.write_text(PROFILE.format(file=model))
        self.output = directory / "tuned.toml"
        self.state = directory / "state.jsonl"
        self.installed = directory / "installed"
        self.installed.mkdir()
        (self.installed / "forgelm").symlink_to(ROOT / "forgelm")

    def arguments(self, *more: str) -> list[str]:
        where = ["--profile", str(self.profile), "--output", str(self.output), "--state", str(self.state)]
        return ["bench", "tune", *where, *TINY, *more]

    def records(self) -> list[str]:
        """Whole lines of what was measured."""
        text = self.state.read_text() if self.state.exists() else ""
        return [line for line in text.split("\n")[:-1] if line]

    def start(self, *more: str, **variables: str) -> subprocess.Popen[str]:
        """From a place that is no clone: what is measured at one commit is none of another's, and somebody may commit
        while tests run."""
        env = environment(FORGELM_MODELS=os.environ.get("FORGELM_MODELS", ""), **variables)
        return subprocess.Popen(
            [*FORGELM, *self.arguments(*more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.installed,
            env={**env, "PYTHONPATH": str(self.installed)},
        )

    def run(self, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*more, **variables) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def servers_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture
def desk(tmp_path: Path, starter_path: Path) -> Desk:
    return Desk(tmp_path, starter_path)


def result_of(run: subprocess.CompletedProcess[str]) -> Result:
    assert run.returncode == 0, run.stderr
    return msgspec.json.decode(run.stdout.splitlines()[-1], type=Result)


def test_a_search_from_its_table_to_its_profile_and_once_more(desk: Desk) -> None:
    arguments = ("--axes", "n_ubatch", "--axis", "n_ubatch=64,128,1024")
    run = desk.run(*arguments, **FAKE)
    found = result_of(run)
    assert found.bench == "tune"
    assert found.subject.file == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert found.subject.sha256 == models.starter_profile().model.sha256
    assert [line.settings for line in lines(found.rows) if line.stage == "search"] == [
        {"engine.n_ubatch": 256}, {"engine.n_ubatch": 64}, {"engine.n_ubatch": 128}, {"engine.n_ubatch": 1024},
    ]  # fmt: skip
    assert "n_ubatch can't be larger than n_batch" in lines(found.rows)[3].any.notes[0]
    assert "decode tok/s" in run.stdout
    assert "n_ubatch=64 (2 after it" in run.stderr
    profile = read_profile(desk.output)
    assert profile.name == "tuned"
    assert profile.engine.context == 1024
    assert profile.model.path() == models.starter()
    before = desk.records()
    again = desk.run(*arguments, "--json", **FAKE)
    assert desk.records() == before, "a search that has ended was measured again"
    assert len(again.stdout.splitlines()) == 1
    assert lines(result_of(again).rows) == lines(found.rows)


def test_it_goes_on_after_a_kill_in_the_middle_of_a_trial(desk: Desk) -> None:
    """SIGKILL, so that nobody tidies up: its servers must end by themselves, and nothing measured may be lost."""
    slow = {"FORGELM_FAKE_ENGINE": '{"step": 0.02, "context": 4096}'}
    arguments = ("--axes", "n_ubatch", "--axis", "n_ubatch=128", "--for", "decode")
    with desk.start(*arguments, **slow) as first:
        until(lambda: len(desk.records()) >= 2, "a pair is measured")
        servers = servers_of(first)
        first.kill()
    assert servers
    until(lambda: not any(map(alive, servers)), "its servers are gone")
    before = desk.records()
    result_of(desk.run(*arguments, **slow))
    after = desk.records()
    assert after[: len(before)] == before
    assert len({json.loads(line)["key"] for line in after}) == len(after), "something was measured twice"
    assert len(after) > len(before)


def test_ctrl_c_ends_it_and_its_servers(desk: Desk) -> None:
    with desk.start("--axes", "n_ubatch", **FAKE) as process:
        until(desk.records, "the default is measured")
        servers = servers_of(process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert not any(map(alive, servers))


@pytest.mark.model
def test_two_files_of_a_real_model(desk: Desk, starter_path: Path) -> None:
    low = models.starter_low()
    files = ("--model", str(starter_path), "--model", str(low), "--axes", "model")
    run = desk.run("--for", "decode", *files, "--quality-tokens", "256", "--max-quality-loss", "5")
    first, second = lines(result_of(run).rows)
    assert (first.model, second.model) == (starter_path.name, low.name)
    perplexity = [line.any.quality["perplexity"] for line in (first, second)]
    assert perplexity[1] > 1.05 * perplexity[0], "fewer bits predict worse"
    assert second.any.notes[0].startswith("not taken: perplexity +")
    assert second.any.quality["kl"] > 0
    for line in (first, second):
        assert line.rows["decode"].decode_rate > 0
        assert line.any.peak_rss
    assert read_profile(desk.output).model.path() == starter_path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--for", "beauty"], 2, "'beauty' is no figure of merit"),
        (["--for", "decode=-1"], 2, "the weight of decode is a number above 0"),
        (["--axis", "n_ubatch=7"], 2, "engine.n_ubatch can't be '7'"),
        (["--axes", "wings"], 2, "there are no values for wings"),
        (["--axes", "threads", "--axis", "threads=1"], 2, "there is nothing to search over"),
        (["--pairs", "3"], 2, "3 is not in the range"),
        (["--model", "no/such.gguf"], 1, "no model file at no/such.gguf"),
        (["--text", "no/such"], 2, "the text no/such can't be read"),
        (["--profile", "no_such"], 2, "no profile named 'no_such'"),
    ],
)
def test_what_can_not_be_searched_is_said_in_one_line(desk: Desk, arguments: list[str], code: int, said: str) -> None:
    run = desk.run(*arguments)
    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not desk.output.exists()


def test_a_profile_that_somebody_wrote_is_left_alone(desk: Desk) -> None:
    desk.output.write_text('name = "mine"\n')
    run = desk.run(**FAKE)
    assert run.returncode == 2
    assert "is a profile that somebody wrote" in run.stderr
    assert desk.output.read_text() == 'name = "mine"\n'
    assert not desk.state.exists()


def test_a_model_that_is_not_here_is_said() -> None:
    run = forgelm("bench", "tune", "--profile", "cpu_fallback", env={"FORGELM_MODELS": "/nonexistent"})
    assert run.returncode == 1
    assert "see `forgelm pull cpu_fallback`" in run.stderr
