"""What a search writes down: found again, in spite of a line that was cut off, and by one search at a time."""

from pathlib import Path

import pytest

from forgelm.bench.tuning_state import Record, State, digest
from forgelm.bench.tuning_types import Pair, Quality, Sample
from forgelm.errors import MachineError

PAIR = Record("p", pair=Pair(Sample({"decode": 1.5}), Sample(failure="no memory"), 2.5))
QUALITY = Record("q", quality=Quality({"perplexity": 10.0}))


def test_records_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.jsonl"
    with State(path) as state:
        state.add(PAIR)
        state.add(QUALITY)
        assert state.find("p") == PAIR
    with State(path) as again:
        assert (again.find("p"), again.find("q"), again.find("r")) == (PAIR, QUALITY, None)


def test_a_line_that_was_cut_off_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    with State(path) as state:
        state.add(PAIR)
        state.add(QUALITY)
    path.write_bytes(path.read_bytes()[:-9])
    with State(path) as state:
        assert state.find("q") is None
        state.add(QUALITY)
    with State(path) as state:
        assert (state.find("p"), state.find("q")) == (PAIR, QUALITY)


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    with State(path) as state:
        state.add(PAIR)
    with State(path, fresh=True) as state:
        assert len(state) == 0


def test_two_searches_do_not_share_a_file(tmp_path: Path) -> None:
    with State(tmp_path / "state.jsonl"), pytest.raises(MachineError, match="another `forgelm bench tune` is writing"):
        State(tmp_path / "state.jsonl", fresh=True)


def test_a_file_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="can't be written"):
        State(tmp_path / "file" / "state.jsonl")


def test_keys_tell_everything_apart_and_nothing_else() -> None:
    assert digest("a", {"x": 1, "y": 2}) == digest("a", {"y": 2, "x": 1})
    assert len({digest("a", 1), digest("a", 2), digest("b", 1), digest("a1")}) == 4
