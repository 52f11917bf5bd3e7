"""The regression check: what it takes for one, what for noise, and what it refuses to compare. With made-up files."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import regress
from forgelm.bench.result import Machine, Result, Row, Spread, Subject, to_line

MACHINE = Machine("a processor", 2, 16 * 10**9, (), "", "6.1", "3.11")
SUBJECT = Subject("forgelm", "0.1", "starter", sha256="ab" * 32, quant="Q4_1", kv_type="f16", profile="starter")
STEADY = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)
"""Factors of one figure over six runs."""
LOUD = (1.0, 1.4, 0.75, 1.2, 0.9, 8.0)


def row(pace: float = 1.0, **fields: Any) -> Row:
    """100 tok/s and 50 ms at a pace of 1."""
    spread = Spread(*(value / 1000 / pace for value in (50, 80, 90, 55, 100)))
    given: dict[str, Any] = {
        "workload": "unique",
        "load": "closed",
        "clients": 8,
        "requests": 10,
        "failed": 0,
        "errors": {},
        "seconds": 10 / pace,
        "prompt_tokens": 2000,
        "cached_tokens": 0,
        "output_tokens": 1000,
        "ttft": spread,
        "itl": spread,
        "e2e": spread,
        "peak_rss": 400_000_000,
    }
    return Row(**{**given, **fields})


def result(rows: Sequence[Row], machine: Machine = MACHINE, subject: Subject = SUBJECT) -> Result:
    return Result(
        bench="run",
        forgelm="0.1",
        commit="0123456789",
        taken="2026-11-30T00:00:00Z",
        command="forgelm bench run",
        machine=machine,
        subject=subject,
        ceiling=None,
        rows=tuple(rows),
    )


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Writes both files, runs the command: its exit status and what it printed."""

    def run(old: Sequence[Result], new: Sequence[Result], *flags: str) -> tuple[int, str]:
        for name, results in (("old", old), ("new", new)):
            lines = ["| a table | of that run |", *map(to_line, results), ""]
            (tmp_path / name).write_text("\n".join(lines))
        status = regress.main([str(tmp_path / "old"), str(tmp_path / "new"), *flags])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def runs(factors: Sequence[float], pace: float = 1.0) -> list[Result]:
    return [result([row(pace * factor)]) for factor in factors]


def test_the_same_again_is_fine(check: Any) -> None:
    status, said = check(runs(STEADY), runs(STEADY[::-1]))
    assert status == 0
    assert said.count("| same") == 6
    assert "forgelm, unique, 8 clients" in said


def test_a_steady_loss_is_a_regression(check: Any) -> None:
    status, said = check(runs(STEADY), runs(STEADY, 0.9))
    assert status == 1
    assert "output +11.1% worse" in said
    assert "peak RSS" not in said.partition("Regressions")[2]


def test_a_gain_is_not(check: Any) -> None:
    status, said = check(runs(STEADY), runs(STEADY, 1.2))
    assert status == 0
    assert said.count("| better") == 5


def test_noise_is_not_taken_for_a_regression(check: Any) -> None:
    """The medians differ by 10 %, runs of either side by far more."""
    status, said = check(runs(LOUD), runs(LOUD, 0.9))
    assert status == 0
    assert "worse, within the noise" in said


def test_a_large_loss_shows_through_noise(check: Any) -> None:
    assert check(runs(LOUD), runs(LOUD, 0.3))[0] == 1


def test_one_disturbed_run_hides_no_regression(check: Any) -> None:
    old, new = runs(STEADY), runs((*STEADY[:-1], 8.0), 0.8)
    assert check(old, new)[0] == 1


def test_a_loss_below_the_threshold_is_none_however_certain(check: Any) -> None:
    assert check(runs(STEADY), runs(STEADY, 0.96))[0] == 0
    assert check(runs(STEADY), runs(STEADY, 0.96), "--threshold", "0.02")[0] == 1


def test_single_runs_have_a_threshold_of_their_own(check: Any) -> None:
    status, said = check(runs([1.0]), runs([0.9]))
    assert status == 0
    assert "worse, noise unknown" in said
    assert check(runs([1.0]), runs([0.8]))[0] == 1
    assert check(runs([1.0]), runs([0.9]), "--single", "0.05")[0] == 1


def test_rows_differ_by_load_and_settings(check: Any) -> None:
    rows = [
        row(1.0),
        row(0.5, clients=1),
        row(0.7, load="open", clients=0, rate=2.0),
        row(0.6, settings={"engine.n_ubatch": 256}),
    ]
    status, said = check([result(rows)], [result(rows[::-1])])
    assert status == 0
    assert "2 requests/s" in said
    assert "8 clients, engine.n_ubatch=256" in said


def test_a_row_that_is_missing_is_said_and_no_success(check: Any) -> None:
    status, said = check([result([row(), row(clients=1)])], [result([row()])])
    assert status == 2
    assert "1 clients: missing in the new file" in said
    assert check([result([row()])], [result([row(), row(clients=1)])])[0] == 0


def test_a_figure_that_is_missing_is_said(check: Any) -> None:
    status, said = check([result([row()])], [result([row(peak_rss=None)])])
    assert status == 2
    assert "peak RSS is missing in the new file" in said


@pytest.mark.parametrize(
    ("machine", "subject", "said"),
    [
        ({"cpu": "another"}, {}, "other cpu: a processor, then another"),
        ({"cores": 4}, {}, "other cores"),
        ({"memory_bytes": 32 * 10**9}, {}, "other memory: 16.0 GB, then 32.0 GB"),
        ({"gpus": ("a card",)}, {}, "other gpus"),
        ({}, {"sha256": "cd" * 32}, "other model"),
        ({}, {"sha256": "", "model": "9b"}, "other model: starter, then 9b"),
        ({}, {"quant": "Q8_0"}, "other quant: Q4_1, then Q8_0"),
        ({}, {"kv_type": "q8_0"}, "other kv_type"),
        ({}, {"profile": ""}, "other profile: starter, then none"),
    ],
)
def test_another_machine_or_model_is_refused(check: Any, machine: Any, subject: Any, said: str) -> None:
    other = result([row(0.5)], msgspec.structs.replace(MACHINE, **machine), msgspec.structs.replace(SUBJECT, **subject))
    status, output = check([result([row()])], [other])
    assert status == 2
    assert said in output
    assert "WORSE" not in output


def test_a_kernel_or_a_version_may_change(check: Any) -> None:
    newer = result(
        [row()],
        msgspec.structs.replace(MACHINE, kernel="6.2", memory_bytes=16 * 10**9 + 5_000_000),
        msgspec.structs.replace(SUBJECT, version="0.2"),
    )
    assert check([result([row()])], [newer])[0] == 0


def test_other_work_is_refused(check: Any) -> None:
    status, said = check([result([row()])], [result([row(output_tokens=500, seconds=5.0)])])
    assert status == 2
    assert "other work: 100 output tokens a request, then 50" in said


def test_one_file_of_two_machines_is_refused(check: Any) -> None:
    other = result([row()], msgspec.structs.replace(MACHINE, cores=64))
    status, said = check([result([row()]), other], [result([row()])])
    assert status == 2
    assert "other cores" in said


def test_more_failures_are_a_regression(check: Any) -> None:
    failing = row(failed=1, errors={"503": 1})
    status, said = check([result([row()])], [result([failing])])
    assert status == 1
    assert "9.1% of the requests fail, 0.0% before" in said


def test_servers_of_one_file_are_apart(check: Any) -> None:
    peer = msgspec.structs.replace(SUBJECT, server="llama-server")
    both = [result([row()]), result([row(0.5)], subject=peer)]
    status, said = check(both, both)
    assert status == 0
    assert "llama-server, unique" in said


def test_files_without_results_are_no_success(check: Any, tmp_path: Path) -> None:
    assert check([], [])[0] == 2
    assert regress.main([str(tmp_path / "none"), str(tmp_path / "old")]) == 2


def test_the_rank_sums_chance_is_that_of_counting_all_interleavings() -> None:
    values = range(7)
    for low_size in (1, 2, 3):
        for low in itertools.combinations(values, low_size):
            high = [value for value in values if value not in low]
            wins = sum(b > a for a in low for b in high)
            ways = [
                sum(b > a for a in chosen for b in values if b not in chosen)
                for chosen in itertools.combinations(values, low_size)
            ]
            expected = sum(way >= wins for way in ways) / len(ways)
            assert regress.rank_sum_chance(low, high) == pytest.approx(expected)


def test_equal_values_are_no_evidence() -> None:
    assert regress.rank_sum_chance([1.0] * 6, [1.0] * 6) > 0.5
