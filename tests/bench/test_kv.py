"""The command: its plan, its table, and a run of it as its users start it."""

import json
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from forgelm.bench.kv import Job, ModelFacts, Report, Row, Spec, TextFacts, plan
from forgelm.bench.prose import Prose
from forgelm.bench.requests import Cell, Quality, Recall
from forgelm.bench.table import make_table
from forgelm.config import Engine, Preset
from forgelm.ipc.start import EngineConfig
from tests.program import FORGELM, environment, forgelm

PROSE = Prose("made up", "text")


# ---- plan and table --------------------------------------------------------------------------------------------------


def test_presets_are_rows_beside_f16_in_their_sizes() -> None:
    presets = {"short": Preset(4096, "f16", 8), "long": Preset(16_384, "q8_0", 2)}
    job = Job(EngineConfig("m", Engine(), 1), PROSE, (512, 1024), ("f16", "q4_0"), 60.0, presets)
    assert list(plan(job)) == [
        Spec(512, "f16"),
        Spec(512, "q4_0"),
        Spec(1024, "f16"),
        Spec(1024, "q4_0"),
        Spec(4096, "f16", 8, "short"),
        Spec(16_384, "f16", 2, "long"),
        Spec(16_384, "q8_0", 2, "long"),
    ]


def cell(*, rss: int, found: tuple[bool, ...]) -> Cell:
    recall = tuple(Recall(10 * index, each, -0.5) for index, each in enumerate(found))
    return Cell(512, 512, False, ("CPU",), rss=rss, prefill_rate=100.0, decode_rate=10.0, recall=recall)


def report(*rows: Row) -> Report:
    return Report(
        model=ModelFacts("m.gguf", 1, "llama", 8192),
        text=TextFacts("made up", "", 1),
        threads=1,
        bytes_per_token={"f16": 1024, "q8_0": 544},
        quality=(Quality("f16", 9, 0.0, 0.0, 1.0, 7.0), Quality("q8_0", 9, 0.125, 0.5, 0.75, 7.5)),
        rows=rows,
        notes=(),
    )


def cells_of(found: Report) -> list[list[str]]:
    """The table's rows as text, split at its lines."""
    console = Console(file=StringIO(), width=150, record=True)
    console.print(make_table(found))
    return [
        [part.strip() for part in line.strip("│ \n").split("│")]
        for line in console.export_text().splitlines()
        if line.startswith("│")
    ]


def row(kv_type: str, kv_bytes: int | None, measured: Cell | None, tokens: int = 512) -> Row:
    return Row("", tokens, kv_type, 1, kv_bytes, measured, "" if measured else "it broke")


def test_sizes_are_compared_with_f16_of_the_same_length() -> None:
    f16 = row("f16", 512 * 1024, cell(rss=200 << 20, found=(True, False)))
    q8_0 = row("q8_0", 512 * 544, cell(rss=150 << 20, found=(True, True)))
    lines = cells_of(report(f16, q8_0))
    assert lines == [
        ["512", "f16", "0.00000", "0.00000", "100.00%", "7.000", "0.5", "200.0", "100", "10.0", "✓✗ -0.50"],
        ["512", "q8_0", "0.12500", "0.50000", "75.00%", "7.500", "0.3 (-47%)", "150.0 (-25%)", "100", "10.0",
         "✓✓ -0.50"],
    ]  # fmt: skip


def test_recall_is_not_shown_where_f16_finds_nothing() -> None:
    """A random model's luck says nothing of a KV type."""
    f16 = row("f16", 512 * 1024, cell(rss=200 << 20, found=(False, False)))
    q8_0 = row("q8_0", 512 * 544, cell(rss=150 << 20, found=(True, True)))
    assert [line[-1] for line in cells_of(report(f16, q8_0))] == ["—", "—"]


def test_a_row_that_failed_and_a_row_without_reference_are_shown() -> None:
    lines = cells_of(report(row("f16", None, None), row("q8_0", 1 << 20, cell(rss=100 << 20, found=(True,)))))
    assert lines[0][6:] == ["—"] * 5
    assert lines[1][6:] == ["1.0", "100.0", "100", "10.0", "—"]


# ---- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`forgelm bench kv`, with more patience than other commands need."""
    command = [*FORGELM, "bench", "kv", "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=280, check=False)


def last_line(stdout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return found


@pytest.mark.model
def test_the_starter_in_json(starter_path: Path) -> None:
    result = run("--model", str(starter_path), "--tokens", "256", "--kv", "q8_0", "--json")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    found = msgspec.json.decode(result.stdout, type=Report)
    assert found.bytes_per_token == {"f16": 23_040, "q8_0": 12_240}  # 30 layers × 3 heads × 64 × keys and values
    f16, q8_0 = found.quality
    assert (f16.kl_mean, f16.same_top) == (0.0, 1.0)
    assert 0.0 < q8_0.kl_mean < 0.1
    assert 1.0 < f16.perplexity < 100.0
    assert [(each.tokens, each.kv_type, each.kv_bytes) for each in found.rows] == [
        (256, "f16", 256 * 23_040),
        (256, "q8_0", 256 * 12_240),
    ]
    assert all(each.cell and each.cell.decode_rate and each.cell.filled == 256 for each in found.rows)
    assert found.text.rounds == 1


@pytest.mark.model
def test_a_profile_with_presets_and_a_text_of_ones_own(qwen35_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("The ship left the harbour.\n\nNobody knew where it would go.\n\nThe captain had said nothing.")
    profile = tmp_path / "tiny.toml"
    profile.write_text(
        f'name = "tiny"\n[model]\nid = "tiny"\nfile = "{qwen35_path}"\n'
        '[presets.long]\ncontext = 4096\nkv_type = "q4_0"\nparallel = 2\n'
    )
    arguments = ("--profile", str(profile), "--text", str(text), "--tokens", "256", "--kv", "f16", "--minutes", "0")
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    found = last_line(result.stdout)
    assert [(each["preset"], each["tokens"], each["kv_type"], each["slots"]) for each in found["rows"]] == [
        ("", 256, "f16", 1),
        ("long", 4096, "f16", 2),
        ("long", 4096, "q4_0", 2),
    ]
    f16, q4_0 = (each["cell"] for each in found["rows"][1:])
    assert f16["copies"]
    assert q4_0["copies"]
    assert 0 < f16["rss"] - q4_0["rss"] < 4 << 20
    assert found["text"]["rounds"] > 10
    assert "long: 2 × 4,096" in result.stdout
    assert "too short and was taken" in result.stdout
    assert "3 of 3: 4,096 tokens in q4_0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--kv", "q5_1"], 2, "'q5_1' is none of f16, bf16, q8_0, q4_0"),
        (["--tokens", "2048,12"], 2, "256 up"),
        (["--tokens", "many"], 2, "256 up"),
        (["--text", "no/such/text"], 2, "can't be read"),
        (["--model", "no/such/model.gguf"], 1, "no model file at no/such/model.gguf"),
    ],
)
def test_what_can_not_be_measured_is_said_in_one_line(arguments: list[str], code: int, said: str) -> None:
    result = forgelm("bench", "kv", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("no model")
    result = forgelm("bench", "kv", "--model", str(path), "--tokens", "256")
    assert (result.returncode, result.stdout) == (1, "")
    assert "model.gguf can't be read" in result.stderr
