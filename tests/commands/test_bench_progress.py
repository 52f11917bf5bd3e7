"""How far a search is, on a terminal and elsewhere."""

from pathlib import Path

import pytest

from forgelm.bench.judging import Merit
from forgelm.bench.space import Axis
from forgelm.bench.tuning_types import Goal, Sample, Trial
from forgelm.commands.bench_progress import Expectation, search_progress
from tests import models
from tests.commands.test_bench_tune import PROFILE, TINY
from tests.program import FORGELM, Terminal

GOAL = Goal(
    merits=(Merit("decode", True),), axes=(Axis("a", (1, 2, 3, 4)),), defaults={"a": 0}, pairs=8, final_pairs=12
)
TAKEN = Trial({"a": 1}, "taken", "better by 9.0%", samples=(Sample(),))
LOST = Trial({"a": 2}, "not taken", "worse", samples=(Sample(),))
SKIPPED = Trial({"a": 3}, "skipped", "it can't run")


def test_what_is_left_is_expected_by_what_was_seen() -> None:
    expected = Expectation(GOAL)
    expected.begins({}, 4)
    assert (expected.pairs, expected.seconds, expected.words) == (4 * 6 + 12, None, "")
    expected.begins({"a": 1}, 3)
    for _ in range(8):
        expected.pair_done(10.0)
    expected.ends(TAKEN)
    assert expected.seconds == 10 * (3 * 6 + 12)
    assert expected.words == "about 5 min left"
    for candidate in (2, 3):
        expected.begins({"a": candidate}, 3 - candidate)
        expected.pair_done(10.0)
        expected.pair_done(10.0)
        expected.ends(LOST)
    expected.begins({"a": 4}, 1)
    assert expected.pairs == 4 + 12, "three candidates took four pairs each"


def test_the_last_comparison_counts_down() -> None:
    expected = Expectation(GOAL)
    expected.ends(TAKEN)
    expected.begins({"a": 1}, 0)
    for _ in range(5):
        expected.pair_done(2.0)
    assert expected.pairs == 7
    assert expected.words == "about 14 s left"


def test_elsewhere_candidates_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with search_progress(GOAL) as watch:
        watch.begins({"a": 3}, 1)
        watch.pair_done(1.0)
        watch.ends(SKIPPED)
    assert capsys.readouterr().err == "a=3 (1 after it)\n  skipped: it can't run\n"


@pytest.mark.server
def test_on_a_terminal_there_is_a_bar_with_what_is_left(tmp_path: Path) -> None:
    profile = tmp_path / "modest.toml"
    profile.write_text(PROFILE.format(file=models.starter()))
    arguments = ["--profile", str(profile), "--output", str(tmp_path / "t.toml"), "--state", str(tmp_path / "s.jsonl")]
    command = [*FORGELM, "bench", "tune", *arguments, *TINY, "--axes", "n_ubatch", "--axis", "n_ubatch=64"]
    fake = {"FORGELM_FAKE_ENGINE": '{"step": 0.001, "context": 4096}'}
    with Terminal(command, env=fake) as terminal:
        terminal.expect("n_ubatch=64")
        terminal.expect("left")
        rest, code = terminal.finish()
    assert code == 0
    assert "taken" in rest
