"""Candidates as real servers with an engine that loads nothing: what is measured, found again, and said of failures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from forgelm.bench import tuning_lab
from forgelm.bench.machine import describe_machine
from forgelm.bench.merits import Effort, parse_merits, probes
from forgelm.bench.space import Value
from forgelm.bench.tuning_lab import Bench, ServerLab
from forgelm.bench.tuning_state import State
from forgelm.bench.tuning_types import Quality, TimeIsUp
from forgelm.config import Engine, Profile
from forgelm.errors import MachineError
from tests import models

pytestmark = pytest.mark.server

UB: dict[str, Value] = {"engine.n_ubatch": 64}
EFFORT = Effort(clients=2, prompt_tokens=16, output_tokens=4, ttft_tokens=32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An engine that loads nothing."""
    monkeypatch.setenv("FORGELM_FAKE_ENGINE", '{"step": 0.001, "context": 4096}')
    return monkeypatch


@pytest.fixture
def bench(starter_path: Path) -> Bench:
    """The starter, decode and throughput."""
    profile = models.starter_profile()
    return Bench(
        base=profile,
        models={"a.gguf": starter_path, "b.gguf": starter_path},
        digests={"a.gguf": "aa", "b.gguf": "bb"},
        probes=probes(parse_merits("decode,throughput,memory"), EFFORT, 4096),
        machine=describe_machine(),
        commit="c",
        quality_text="t",
        together=True,
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """An empty one."""
    with State(tmp_path / "state.jsonl") as state:
        yield state


def lab(bench: Bench, state: State, **changes: Any) -> ServerLab:
    def check(profile: Profile, path: Path) -> None:
        if profile.engine.context > 100_000:
            raise MachineError("it doesn't fit")

    def measure(path: Path, engine: Engine) -> Quality:
        return Quality({"perplexity": 9.0 if engine.kv_type == "f16" else 9.5})

    return ServerLab(msgspec.structs.replace(bench, **changes), state, check, measure)


def children() -> int:
    return len(psutil.Process().children())


def no_server(*_: object, **__: object) -> None:
    raise AssertionError("a server was started")


def test_a_pair_is_two_servers_side_by_side_and_none_is_left(
    bench: Bench, state: State, fake: pytest.MonkeyPatch
) -> None:
    before = children()
    with lab(bench, state) as servers:
        pair = servers.pair(UB, {}, 0, "search")
        assert children() == before + 2
        again = servers.pair(UB, {}, 1, "search")
        assert children() == before + 2
    assert children() == before
    for sample in (pair.candidate, pair.incumbent, again.candidate):
        assert sample.failure == ""
        assert set(sample.figures) == {"decode", "throughput", "memory", "context"}
        assert [row.requests for row in sample.rows] == [2, 2]
    assert pair.seconds > 0


def test_one_server_at_a_time_where_two_would_be_in_each_others_way(
    bench: Bench, state: State, fake: pytest.MonkeyPatch
) -> None:
    before = children()
    with lab(bench, state, together=False) as servers:
        servers.pair(UB, {}, 0, "search")
        assert children() == before + 1


def test_what_was_measured_is_not_measured_again(bench: Bench, state: State, fake: pytest.MonkeyPatch) -> None:
    with lab(bench, state) as servers:
        default, pair = servers.alone({}), servers.pair(UB, {}, 0, "search")
        quality = servers.quality({"engine.kv_type": "q8_0"})
    fake.setattr(tuning_lab, "serving", no_server)
    with lab(bench, state) as servers:
        assert servers.alone({}) == default
        assert servers.pair(UB, {}, 0, "search") == pair
        assert servers.quality({"engine.kv_type": "q8_0"}) == quality == Quality({"perplexity": 9.5})


@pytest.mark.parametrize("changed", ["number", "stage", "settings", "model", "commit", "machine", "probes", "profile"])
def test_anything_else_is_measured(bench: Bench, state: State, fake: pytest.MonkeyPatch, changed: str) -> None:
    with lab(bench, state) as servers:
        servers.pair(UB, {}, 0, "search")
    fake.setattr(tuning_lab, "serving", no_server)
    changes: dict[str, dict[str, Any]] = {
        "commit": {"commit": "d"},
        "machine": {"machine": msgspec.structs.replace(bench.machine, cores=99)},
        "probes": {"probes": bench.probes[:1]},
        "profile": {"base": bench.base.with_overrides({"engine.parallel": 2})},
    }
    more: dict[str, dict[str, Value]] = {"settings": {"engine.threads": 1}, "model": {"model": "b.gguf"}}
    number, stage = int(changed == "number"), "final" if changed == "stage" else "search"
    with lab(bench, state, **changes.get(changed, {})) as servers, pytest.raises(AssertionError, match="was started"):
        servers.pair({**UB, **more.get(changed, {})}, {}, number, stage)


def test_a_server_that_dies_under_load_is_a_sample_with_its_reason(
    bench: Bench, state: State, fake: pytest.MonkeyPatch
) -> None:
    with lab(bench, state) as servers:
        servers.alone({})
        fake.setenv("FORGELM_FAKE_ENGINE", '{"step": 0.001, "context": 4096, "crash_at": 12}')
        pair = servers.pair(UB, {}, 0, "search")
    assert "requests failed" in pair.candidate.failure
    assert pair.incumbent.failure == ""
    assert pair.candidate.figures == {}


def test_a_server_that_does_not_start_is_a_sample_with_its_reason(
    bench: Bench, state: State, fake: pytest.MonkeyPatch
) -> None:
    fake.setenv("FORGELM_FAKE_ENGINE", '{"fail_load": "out of memory"}')
    with lab(bench, state) as servers:
        assert servers.alone({}).failure == "out of memory"
        fake.setenv("FORGELM_FAKE_ENGINE", '{"step": 0.001, "context": 4096}')
        assert servers.alone({}).failure == ""


def test_a_measurement_that_takes_too_long_is_given_up(bench: Bench, state: State, fake: pytest.MonkeyPatch) -> None:
    """Threads that wait for each other beside other programs are fifty times slower: one took all the time."""
    with lab(bench, state) as servers:
        servers.alone({})
        fake.setattr(servers, "_patience", 0.5)
        fake.setenv("FORGELM_FAKE_ENGINE", '{"step": 2, "context": 4096}')
        pair = servers.pair(UB, {}, 0, "search")
    assert pair.candidate.failure == "it was given up after 0 s"


def test_a_measurement_ends_when_the_time_is_up(bench: Bench, state: State, fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FORGELM_FAKE_ENGINE", '{"step": 2, "context": 4096}')
    before = children()
    with lab(bench, state, seconds=0.5) as servers, pytest.raises(TimeIsUp):
        servers.alone({})
    assert children() == before


def test_the_last_comparison_may_take_its_time(bench: Bench, state: State, fake: pytest.MonkeyPatch) -> None:
    with lab(bench, state, seconds=0.001) as servers:
        assert servers.pair(UB, {}, 0, "final").candidate.failure == ""


def test_what_can_not_run_is_known_beforehand(bench: Bench, state: State) -> None:
    with lab(bench, state) as servers:
        assert servers.refusal(UB) == ""
        assert servers.refusal({"engine.context": 200_000}) == "it doesn't fit"
        assert servers.refusal({"engine.n_ubatch": 4096}).startswith("n_ubatch can't be larger than n_batch")


def test_only_files_and_kv_types_change_quality_and_it_is_a_figure_once_known(
    bench: Bench, state: State, fake: pytest.MonkeyPatch
) -> None:
    with lab(bench, state) as servers:
        assert not servers.changes_quality(UB)
        assert servers.changes_quality({"model": "b.gguf"})
        assert servers.changes_quality({"engine.kv_type": "q8_0"})
        assert "quality" not in servers.alone({}).figures
        servers.quality({})
        servers.quality({"engine.kv_type": "q8_0"})
        pair = servers.pair({"engine.kv_type": "q8_0"}, {}, 0, "search")
    assert (pair.candidate.figures["quality"], pair.incumbent.figures["quality"]) == (9.5, 9.0)
