"""Rows that are planned, the machine, the table and the line."""

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from forgelm.bench.driving import Closed, Open
from forgelm.bench.machine import command_line, commit, describe_machine, make_result
from forgelm.bench.printing import append_line, decode_share, make_table, print_result
from forgelm.bench.result import Ceiling, Result, Row, Spread, Subject, read_results, to_line
from forgelm.bench.rows import Wanted, plan_rows
from forgelm.bench.tally import spread
from forgelm.bench.workloads import Sizes
from forgelm.errors import ConfigError

CEILING = Ceiling(10e9, 100e9, 100e6, 0.5e9, "a processor")
SUBJECT = Subject("forgelm", "1.0", "a-model", quant="Q4_1")


def row(clients: int = 1, *, failed: int = 0, notes: tuple[str, ...] = ()) -> Row:
    fast = Spread(0.0123, 0.123, 1.23, 0.1, 12.3)
    return Row(workload="unique", load="closed", clients=clients, requests=8, failed=failed, errors={}, seconds=2.0,
               prompt_tokens=100, cached_tokens=25, output_tokens=60, ttft=fast, itl=fast, e2e=fast, decode_rate=40.0,
               peak_rss=1_500_000_000, notes=notes)  # fmt: skip


def empty() -> Row:
    return Row(workload="long", load="open", rate=0.5, requests=0, failed=3, errors={"500": 3}, seconds=0.0,
               prompt_tokens=0, cached_tokens=0, output_tokens=0, ttft=None, itl=None, e2e=None)  # fmt: skip


def result(*rows: Row, ceiling: Ceiling | None = CEILING) -> Result:
    return make_result("run", SUBJECT, ceiling, rows, ("seed 1",))


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_every_workload_is_run_under_every_load() -> None:
    wanted = Wanted(("unique", "long"), Sizes(seed=3), clients=(1, 8), rates=(0.5,))
    found = plan_rows(wanted)
    assert [each.label for each in found] == [
        "unique, 1 client", "unique, 8 clients", "unique, 0.5/s", "long, 1 client", "long, 8 clients", "long, 0.5/s",
    ]  # fmt: skip
    assert [each.load for each in found[:3]] == [Closed(1, 16), Closed(8, 32), Open(0.5, 16)]
    assert len({each.workload.sizes.seed for each in found}) == 6, "what one has sent is in the memory at the next"
    again = plan_rows(wanted)
    assert [each.workload.sizes for each in again] == [each.workload.sizes for each in found]


def test_loads_are_what_is_asked_for() -> None:
    sizes = Sizes()
    assert [each.load for each in plan_rows(Wanted(("unique",), sizes))] == [Closed(1, 16), Closed(4, 16)]
    assert [each.load for each in plan_rows(Wanted(("unique",), sizes, rates=(2.0,)))] == [Open(2.0, 16)]
    assert [each.load for each in plan_rows(Wanted(("unique",), sizes, clients=(2, 5), requests=3))] == [
        Closed(2, 3),
        Closed(5, 5),
    ]
    assert [each.load for each in plan_rows(Wanted(("unique",), sizes, clients=(2,), seconds=5))] == [Closed(2, 0, 5)]
    assert [each.load for each in plan_rows(Wanted(("hundred",), sizes, clients=(2,), rates=(1.0,)))] == [
        Closed(100, 400)
    ]
    with pytest.raises(ConfigError, match="no workload 'x'"):
        plan_rows(Wanted(("x",), sizes))


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_percentiles_are_interpolated() -> None:
    found = spread([float(value) for value in range(101)])
    assert found == Spread(50.0, 95.0, 99.0, 50.0, 100.0)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0)
    assert spread([]) is None


def test_only_one_client_alone_is_compared_with_the_ceiling() -> None:
    assert decode_share(row(1), CEILING) == pytest.approx(40.0 / 100.0)
    assert decode_share(row(2), CEILING) is None
    assert decode_share(row(1), None) is None
    assert decode_share(empty(), CEILING) is None


# ---- table and line --------------------------------------------------------------------------------------------------


def cells(found: Result) -> list[list[str]]:
    console = Console(file=StringIO(), width=160, record=True)
    console.print(make_table(found))
    lines = console.export_text().splitlines()
    return [line.split() for line in lines if line.strip().startswith(("unique", "long"))]


def test_the_table_has_every_figure() -> None:
    latencies = "0.01/0.12/1.23"
    figures = [latencies, "12.3/123/1230", latencies, "30.0", "25%", "1.50"]
    assert cells(result(row(1), row(4, failed=2), empty())) == [
        ["unique", "1", "8", *figures, "40%"],
        ["unique", "4", "8/10", *figures, "—"],
        ["long", "0.5/s", "0/3", "—", "—", "—", "0.0", "—", "—", "—"],
    ]  # fmt: skip
    assert cells(result(row(4), ceiling=None)) == [["unique", "4", "8", *figures]]


def test_the_widest_table_has_a_hundred_columns() -> None:
    slow = Spread(12.3, 123.0, 1234.0, 50.0, 1235.0)
    wide = msgspec.structs.replace(
        row(), workload="conversations", ttft=slow, e2e=slow, peak_vram=80_000_000_000, requests=400
    )
    console = Console(file=StringIO(), width=160, record=True)
    console.print(make_table(result(wide)))
    assert max(len(line.rstrip()) for line in console.export_text().splitlines()) <= 100


def test_a_model_that_the_cache_may_hold_has_no_share_of_the_memorys_speed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = msgspec.structs.replace(CEILING, cache_bytes=100_000_000)
    assert decode_share(row(1), held) is None
    print_result(result(row(1), ceiling=held), colour=False)
    assert "The model may lie in the processor's cache of 100 MB" in capsys.readouterr().out


def test_notes_come_once_with_the_rows_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result(row(1, notes=("odd",)), row(4, notes=("odd", "new"))), colour=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["seed 1", "unique 1, unique 4: odd", "unique 4: new"]
    assert any("decode 100 tok/s for one sequence (10.0 GB/s over 100.0 MB a token)" in line for line in lines)
    print_result(result(row(1), ceiling=None), colour=False)
    assert "Ceiling" not in capsys.readouterr().out


def test_results_are_added_to_a_file_and_read_back(tmp_path: Path) -> None:
    path, first, second = tmp_path / "results.jsonl", result(row(1)), result(empty(), ceiling=None)
    append_line(first, path)
    append_line(second, path)
    assert read_results(path) == [first, second]
    assert "\n" not in to_line(first)
    with pytest.raises(ConfigError, match="can't be written"):
        append_line(first, tmp_path / "nowhere" / "results.jsonl")


# ---- the machine -----------------------------------------------------------------------------------------------------


def test_the_machine_is_described_without_names(tmp_path: Path) -> None:
    found = describe_machine()
    assert found.cpu
    assert found.cores >= 1
    assert found.memory_bytes > 1 << 28
    assert found.kernel.startswith("Linux ")
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\n")
    made_up = describe_machine(tmp_path)
    assert (made_up.cpu, made_up.memory_bytes) == ("Some CPU @ 3 GHz", 1_024_000)


def test_commands_are_written_down_without_folders_and_passwords() -> None:
    typed = [
        "bench",
        "run",
        "--url=http://me:secret@host:1/v1?key=x",
        "--model-file",
        "/home/me/m.gguf",
        "--output=/a/b",
    ]
    assert command_line(typed) == "forgelm bench run --url=http://host:1/v1 --model-file m.gguf --output=b"
    assert command_line(["bench", "run", "--rate", "0.5,1"]) == "forgelm bench run --rate 0.5,1"


def test_a_commit_is_one_or_nothing() -> None:
    found = commit().removesuffix("+")
    assert found == "" or (len(found) >= 10 and int(found, 16) >= 0)
