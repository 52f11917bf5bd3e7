"""What a search has found as rows, as a table and as a profile."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.bench.judging import Judgement, Merit
from forgelm.bench.merits import Probe
from forgelm.bench.pairs import Estimate
from forgelm.bench.result import Row
from forgelm.bench.space import Axis, Value
from forgelm.bench.tuning_profile import require_writable, tuned_profile, tuned_toml
from forgelm.bench.tuning_rows import lines, merged, outcome_rows
from forgelm.bench.tuning_table import HEADINGS, table_cells
from forgelm.bench.tuning_types import Goal, Outcome, Sample, Trial
from forgelm.config import ModelSource, Preset, Profile
from forgelm.errors import ConfigError
from tests.bench.rows import result, row, spread

PROBES = (Probe("decode", "unique", 64, 64, 1, 2), Probe("throughput", "unique", 64, 64, 8, 8))
DEFAULTS: dict[str, Value] = {"engine.n_ubatch": 512, "engine.kv_type": "f16"}
UB: dict[str, Value] = {"engine.n_ubatch": 256}
Q4: dict[str, Value] = {"engine.kv_type": "q4_0"}
BASE = Profile(name="starter", model=ModelSource(id="m", file="m.gguf", repo="o/r", sha256="ab" * 32, bytes=7))
JUDGED = Judgement(True, "better by 10.0%", False, Estimate(1.1, 1.05, 1.2, 9), {"decode": Estimate(1.1, 1.05, 1.2, 9)})


def sample(rate: float) -> Sample:
    return Sample({"decode": rate}, (row(decode_rate=rate), row(clients=8, seconds=512 / rate)))


def found(**changes: Any) -> Outcome:
    default = Trial({}, "default", "", samples=(sample(1.0),))
    taken = Trial(UB, "taken", "better by 10.0%", {}, (sample(90.0),), (sample(80.0),), {}, JUDGED)
    lost = Trial({**UB, **Q4}, "failed", "out of memory", UB, (Sample(failure="out of memory"),))
    fields: dict[str, Any] = {
        "trials": (default, taken, lost),
        "winner": UB,
        "why": "better by 10.0%",
        "final": JUDGED,
        "final_samples": ((sample(91.0), sample(81.0)),),
    }
    return Outcome(**{**fields, **changes})


def rows_of(outcome: Outcome) -> list[Row]:
    return outcome_rows(outcome, PROBES, DEFAULTS)


def test_every_candidate_has_a_row_for_each_workload_and_failures_have_one() -> None:
    found_lines = lines(rows_of(found()))
    assert [(line.settings, line.stage, list(line.rows)) for line in found_lines] == [
        (DEFAULTS, "search", ["decode", "throughput"]),
        ({**DEFAULTS, **UB}, "search", ["decode", "throughput"]),
        ({**DEFAULTS, **UB, **Q4}, "search", [""]),
        ({**DEFAULTS, **UB}, "final", ["decode", "throughput"]),
        (DEFAULTS, "final", ["decode", "throughput"]),
    ]
    assert found_lines[2].any.notes == ("failed: out of memory",)
    assert found_lines[2].any.failed == 1


def test_the_defaults_row_is_what_was_measured_beside_candidates() -> None:
    """The one measurement at the start is of another minute: on a busy machine it looked three times as fast."""
    assert rows_of(found())[0].decode_rate == 80.0
    alone = found(trials=found().trials[:1], winner={}, final=None, final_samples=())
    assert rows_of(alone)[0].decode_rate == 1.0


def test_repetitions_become_one_row() -> None:
    one = row(ttft=spread(0.1), peak_rss=5, decode_rate=10.0)
    two = row(ttft=spread(0.3), peak_rss=7, decode_rate=30.0, peak_vram=9)
    whole = merged([one, two, row(ttft=None, decode_rate=20.0)])
    assert (whole.requests, whole.seconds, whole.output_tokens) == (24, 24.0, 1536)
    assert whole.ttft is not None
    assert whole.ttft.p50 == pytest.approx(0.2)
    assert (whole.decode_rate, whole.peak_vram) == (20.0, 9)
    assert merged([row(itl=None)]).itl is None


def test_the_table_says_what_differs_and_what_became_of_it() -> None:
    cells = table_cells(result(*rows_of(found()), bench="tune"))
    assert [line[0] for line in cells] == [
        "default", "n_ubatch=256", "n_ubatch=256, kv_type=q4_0", "n_ubatch=256 (measured again)",
        "default (measured again)",
    ]  # fmt: skip
    assert [line[1] for line in cells] == ["80.0", "90.0", "—", "91.0", "81.0"]
    assert cells[1][-1] == "taken: better by 10.0%"
    assert all(len(line) == len(HEADINGS) for line in cells)


def goal() -> Goal:
    return Goal(merits=(Merit("decode", True),), axes=(Axis("engine.n_ubatch", (256,)),), defaults=DEFAULTS)


def test_the_profile_loads_and_says_what_was_measured() -> None:
    outcome = found()
    profile = tuned_profile(BASE, "starter_tuned", outcome, Path("/models/m.gguf"), own=True)
    text = tuned_toml(profile, BASE, goal(), outcome, result(bench="tune"))
    loaded = msgspec.toml.decode(text, type=Profile)
    assert loaded == profile
    assert loaded.engine.n_ubatch == 256
    assert loaded.model == BASE.model
    assert "on 2026-11-30: starter's settings, searched for decode." in text
    assert "# Changed: engine.n_ubatch 512 → 256." in text
    assert "decode 1.100 (1.050 … 1.200)" in text
    head, _, rest = text.partition('name = "starter_tuned"')
    assert all(line.startswith("# ") for line in head.splitlines())
    assert "#" not in rest


def test_a_default_that_stays_is_written_with_its_reason() -> None:
    outcome = found(winner={}, why="nothing was better beyond the noise", complete=False)
    text = tuned_toml(
        tuned_profile(BASE, "same", outcome, Path("m.gguf"), own=True), BASE, goal(), outcome, result(bench="tune")
    )
    assert "Nothing is changed: nothing was better beyond the noise." in text
    assert "The time was up before every candidate had its turn." in text
    assert msgspec.toml.decode(text, type=Profile).engine == BASE.engine


def test_another_file_is_named_with_its_path_and_claims_nothing_of_the_first() -> None:
    profile = tuned_profile(BASE, "other", found(), Path("/elsewhere/q8.gguf"), own=False)
    assert profile.model.path() == Path("/elsewhere/q8.gguf")
    assert (profile.model.repo, profile.model.sha256, profile.model.bytes) == ("", "", 0)
    assert profile.model.id == "m"


def test_a_profile_that_somebody_wrote_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    require_writable(path)
    path.write_text('name = "mine"\n')
    with pytest.raises(ConfigError, match="somebody wrote"):
        require_writable(path)
    path.write_text("# Written by `forgelm bench tune` on 2026-11-30\n")
    require_writable(path)


def test_presets_stay_unless_they_contradict_the_winner() -> None:
    """The starter's preset for long contexts has q8_0, which can't do without flash attention: no candidate could."""
    base = msgspec.structs.replace(BASE, presets={"long": Preset(8192, "q8_0", 2)})
    kept = tuned_profile(base, "t", found(), Path("m.gguf"), own=True)
    assert kept.presets == base.presets
    off = tuned_profile(base, "t", found(winner={"engine.flash_attention": "off"}), Path("m.gguf"), own=True)
    assert (off.engine.flash_attention, off.presets) == ("off", {})
