"""The comparison with llama.cpp's grammar: it runs, and what it says of a schema is so."""

import json
import subprocess
import sys
from pathlib import Path

from bench.grammars import schemas, summary

ROOT = Path(__file__).parent.parent


def test_schemas_are_spread_over_the_conformance_tests() -> None:
    found = [name for name, _ in schemas(20)]
    assert len(found) == 20
    assert len({name.partition(":")[0] for name in found}) >= 4


def test_a_ratio_is_of_the_sums_over_schemas_that_both_follow() -> None:
    row = {"check": 10.0, "compile": 20.0, "first mask": 5.0}
    both = [
        {**row, "tokens": 10, "ours": 4.0, "theirs": 8.0, "taken": 10, "masked": 5},
        {**row, "tokens": 30, "ours": 2.0, "theirs": 8.0, "taken": 30, "masked": 0},
    ]
    text = summary([*both, {**row, "tokens": 5, "ours": 100.0, "their problem": "unknown keyword"}])
    assert "over 2 schemas" in text
    assert "(12% of tokens masked whole)" in text
    assert f"ratio of sums {(40 + 60) / 320:.3f}" in text


def test_it_runs(starter_path: Path) -> None:
    command = [sys.executable, "-m", "bench.grammars", "--schemas", "3", "--tokens", "6", "--model", str(starter_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert len(rows) == 3
    assert all(0 < row["tokens"] <= 6 and row["ours"] > 0 for row in rows.values())
