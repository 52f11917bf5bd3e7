"""How the comparison pairs its measurements, and what it tells the servers. No server is started."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench import compare, hybrid, machine, opponents, paired, scenarios, servers
from bench.load import Metrics
from bench.opponents import Opponent
from bench.paired import Options
from bench.peers import Peers
from bench.rows import ROWS
from bench.scenarios import Measure, Work
from forgelm import paths
from forgelm.profiles import read_profile
from tests import make_qwen35

SETTINGS = servers.Settings(Path("model.gguf"), threads=3, context=4096, parallel=5)
PEERS = Peers(Path("peers"))
LLAMA = Opponent("llama-server", partial(opponents.llama_server, PEERS.server), "1", PEERS.batched_bench)


def options(pairs: int = 4, *, aa: bool = False, redo_above: float = 0.0) -> Options:
    return Options(Work(SETTINGS), pairs, seed=50, quiet=0.0, patience=0.0, redo_above=redo_above, aa=aa)


class Calls(list[tuple[str, int]]):
    """Who was measured, in order, with which seed."""

    def measure(self, who: str, value: float) -> Measure:
        def measured(seed: int) -> Metrics:
            self.append((who, seed))
            figures = {row.metric: value for row in (*ROWS["shared"], *ROWS["restart"])}
            return {**figures, "reused_share": 0.85 if who == "ours" else 0.4}

        return measured


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Measurements that cost nothing: 1 of ours, 4 of theirs, and no other side for a restart."""
    calls = Calls()

    def sides(scenario: str, work: Work, opponent: Opponent) -> tuple[Measure, Measure | None]:
        theirs = None if scenario.startswith("restart") else calls.measure("theirs", 4.0)
        return calls.measure("ours", 1.0), theirs

    monkeypatch.setattr(paired, "sides", sides)
    return calls


def test_pairs_alternate_and_both_sides_get_the_same_texts(calls: Calls) -> None:
    samples = paired.run_pairs("shared", options(), LLAMA)
    assert calls == [
        ("ours", 50),
        ("theirs", 50),
        ("theirs", 51),
        ("ours", 51),
        ("ours", 52),
        ("theirs", 52),
        ("theirs", 53),
        ("ours", 53),
    ]
    results = {result.row.title: result for result in samples.results("shared", bars=True)}
    assert results["TTFT p50"].estimate.median == pytest.approx(0.25)
    assert results["TTFT p50"].verdict() == "met (no interval)"
    hybrid_rows = {result.row.title: result for result in samples.results("shared-hybrid", bars=True)}
    reused = hybrid_rows["cached, of all prompts but one"]
    assert (reused.ours, reused.theirs, reused.verdict()) == (85.0, 40.0, "MISSED (no interval)")


def test_a_scenario_without_a_peer_measures_ours_alone(calls: Calls) -> None:
    samples = paired.run_pairs("restart", options(2), LLAMA)
    assert calls == [("ours", 50), ("ours", 51)]
    report = compare.report("restart", samples, options(2), LLAMA)
    assert [row["theirs"] for row in report["rows"]] == [None] * len(ROWS["restart"])


def test_aa_measures_theirs_twice_and_skips_what_has_no_peer(calls: Calls) -> None:
    paired.run_pairs("shared", options(1, aa=True), LLAMA)
    assert [who for who, _ in calls] == ["theirs", "theirs"]
    samples = paired.run_pairs("restart", options(1, aa=True), LLAMA)
    assert (samples.ours, len(calls)) == ([], 2)
    assert compare.report("restart", samples, options(1, aa=True), LLAMA).keys() == {"samples"}


def test_disturbed_pairs_are_measured_again_with_new_texts(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a pair was dropped, a server that remembers could know its texts."""
    readings = iter([0.0, 0.9, 0.0, 0.0])
    monkeypatch.setattr(machine.Competition, "end", lambda self: next(readings))
    samples = paired.run_pairs("shared", options(1, redo_above=0.1), LLAMA)
    assert calls == [("ours", 50), ("theirs", 50), ("ours", 51), ("theirs", 51)]
    assert (len(samples.ours), len(samples.theirs), samples.disturbed) == (1, 1, 1)


# --- what servers are told ---


def value_of(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("flags", servers.PEER_FLAGS)
def test_both_servers_get_the_same_sizes(flags: str) -> None:
    ours = servers.forgelm(SETTINGS).command
    theirs = servers.llama_server(SETTINGS, PEERS.server, flags).command
    for mine, other in (("--parallel", "--parallel"), ("--context", "--ctx-size"), ("--threads", "--threads")):
        assert value_of(ours, mine) == value_of(theirs, other)
    assert value_of(ours, "--model") == value_of(theirs, "--model") == "model.gguf"


def test_llama_server_may_remember_only_where_prompts_begin_alike() -> None:
    unique = servers.llama_server(SETTINGS, PEERS.server)
    assert "--no-cache-prompt" in unique.command
    assert unique.extra == {"cache_prompt": False}
    for flags in ("default", "best"):
        kind = servers.llama_server(SETTINGS, PEERS.server, flags)
        assert "--no-cache-prompt" not in kind.command
        assert kind.extra == {}
    assert scenarios.uses_peer_flags("turns-hybrid")
    assert not scenarios.uses_peer_flags("http8")


def test_the_disk_tier_is_on_and_its_files_are_nobody_elses(tmp_path: Path) -> None:
    kind = servers.forgelm_with_disk(SETTINGS, tmp_path)
    profile = read_profile(Path(value_of(kind.command, "--profile")))
    assert profile.cache.disk_tier
    assert kind.environment == {"XDG_CACHE_HOME": str(tmp_path)}
    assert not read_profile(paths.shipped_profiles_dir() / "starter.toml").cache.disk_tier


def test_the_hybrid_is_written_once(tmp_path: Path, starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hybrid, "SHAPE", make_qwen35.TINY)
    first = hybrid.model(starter_path)
    written = first.stat().st_mtime_ns
    assert hybrid.model(starter_path) == first
    assert first.stat().st_mtime_ns == written
    assert [path.suffix for path in first.parent.iterdir()] == [".gguf"]


def test_bars_are_those_against_llama_server(calls: Calls) -> None:
    samples = paired.run_pairs("shared", options(1), LLAMA)
    other = replace(LLAMA, name="another")
    assert any(row["verdict"] for row in compare.report("shared", samples, options(1), LLAMA)["rows"])
    for where in ((options(1), other), (options(1, aa=True), LLAMA)):
        assert not any(row["verdict"] for row in compare.report("shared", samples, *where)["rows"])
