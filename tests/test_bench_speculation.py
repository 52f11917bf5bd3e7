"""The benchmark of guessing: what servers are told and asked, what is counted, and how rounds are compared."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench import machine, paired, scenarios, servers, speculation, speculation_host
from bench.load import Metrics
from bench.peers import Peers
from bench.speculation_runs import Case, Work, guesses, kind, measure
from bench.speculation_scenarios import SCENARIOS, Scenario
from bench.speculation_texts import notes_again, opening
from bench.sse import Answer, Drafts, parse
from forgelm.config import Speculation
from forgelm.llama.vocab import Vocabulary
from forgelm.profiles import read_profile

SETTINGS = servers.Settings(Path("model.gguf"), threads=3, context=4096, parallel=5)
MODES = sorted({mode for scenario in SCENARIOS.values() for mode in scenario.modes})
NAN = math.nan


def work(directory: Path, settings: servers.Settings = SETTINGS) -> Work:
    return Work(settings, Path('a "draft".gguf'), Peers(Path("peers")), directory)


def options(pairs: int, redo_above: float = 0.0) -> paired.Options:
    return paired.Options(scenarios.Work(SETTINGS), pairs, 50, 0.0, 0.0, redo_above, aa=False)


def value_of(command: Sequence[str], flag: str) -> str:
    return command[command.index(flag) + 1]


# --- what servers are told ---


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("off", "off"),
        ("auto", "auto"),
        ("ngram", Speculation(drafter="ngram")),
        ("mtp", Speculation(drafter="mtp")),
        ("draft", Speculation(drafter="draft", model='a "draft".gguf')),
        ("draft 7", Speculation(drafter="draft", model='a "draft".gguf', depth=7, adaptive=False)),
    ],
)
def test_a_mode_of_ours_is_a_profile(tmp_path: Path, mode: str, said: object) -> None:
    command = kind(mode, work(tmp_path)).command
    assert read_profile(Path(value_of(command, "--profile"))).speculation == said
    assert value_of(command, "--model") == "model.gguf"


def test_profiles_of_different_modes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    commands = [kind(mode, work(tmp_path)).command for mode in ("off", "auto", "draft 3", "draft 7")]
    assert len({value_of(command, "--profile") for command in commands}) == 4


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_get_the_same_sizes(tmp_path: Path, mode: str) -> None:
    command = kind(mode, work(tmp_path)).command
    context = "--ctx-size" if mode.startswith("llama") else "--context"
    assert [value_of(command, flag) for flag in ("--parallel", context, "--threads")] == ["5", "4096", "3"]


def test_llama_server_drafts_as_many_as_ours(tmp_path: Path) -> None:
    command = kind("llama draft 7", work(tmp_path)).command
    assert value_of(command, "--model-draft") == 'a "draft".gguf'
    assert value_of(command, "--spec-draft-n-max") == "7"
    assert "--spec-type" not in kind("llama", work(tmp_path)).command
    with pytest.raises(KeyError):
        kind("llama draft 5", work(tmp_path))


# --- what they are asked ---


def test_the_third_version_of_the_notes_is_begun(starter_path: Path) -> None:
    prompt = notes_again(4)
    first, second, third = (part.split("\n\n")[1].splitlines() for part in prompt.split("Version ")[1:])
    assert len(first) == 13
    assert first[1:] == second[1:]
    assert len({first[0], second[0], third[0]}) == 3
    assert len(third) == 1
    assert prompt.endswith(third[0] + "\n")
    copied = "\n".join(first[1:])
    tokens = len(Vocabulary.open(starter_path).tokenize(copied, add_special=False, parse_special=False))
    # What is asked for is all copy, and nothing is left to say after it.
    assert SCENARIOS["edit"].cases[0].tokens <= tokens < 320


def test_texts_depend_on_the_seed_alone() -> None:
    assert notes_again(1) == notes_again(1) != notes_again(2)
    assert opening(1) == opening(1)
    assert len({opening(seed) for seed in range(40)}) == 40


# --- what is counted ---


def answer(tokens: int, drafts: Drafts) -> Answer:
    """Sent at 1, first text at 2, ended at 4."""
    return Answer(1.0, (2.0, 4.0), tokens, 7, "", 0, 4.0, drafts)


def test_steps_are_tokens_that_were_not_guessed() -> None:
    """Each answer's first token comes with its prompt: no step of decoding drew it."""
    figures = guesses([answer(9, Drafts(8, 6, 2, 0.5)), answer(13, Drafts(12, 9, 3, 1.5))])
    assert figures == {
        "decode_tok_s": 20 / 4,
        "steps_per_token": 5 / 20,
        "acceptance": 15 / 20,
        "tokens_per_verification": 4.0,
        "drafted_per_token": 1.0,
        "drafting_s_per_token": 0.1,
    }


def test_what_a_server_does_not_say_is_no_number() -> None:
    silent = guesses([answer(9, Drafts())])
    assert silent["steps_per_token"] == 1.0
    assert math.isnan(silent["acceptance"])
    assert math.isnan(guesses([answer(9, Drafts(8, 6))])["tokens_per_verification"])


def test_drafts_are_read_from_timings() -> None:
    timings = {"draft_n": 8, "draft_n_accepted": 6, "draft_verifications": 2, "draft_ms": 500.0}
    event = json.dumps({"choices": [{"text": "a"}], "timings": timings})
    stream = f"HTTP/1.1 200 OK\r\n\r\ndata: {event}\n\ndata: [DONE]\n\n"
    assert parse(0.0, [(1.0, stream.encode())]).drafts == Drafts(8, 6, 2, 0.5)


def test_a_model_that_drafts_for_itself_needs_a_step_in_four(tmp_path: Path, starter_path: Path) -> None:
    """One measurement from end to end, with a server of ours."""
    one = Work(servers.Settings(starter_path, context=1024), starter_path, Peers(Path("peers")), tmp_path)
    figures = measure("draft 3", (Case("two", 2, opening, rounds=1, tokens=25),), one, 3)
    assert figures["two: steps_per_token"] < 0.4
    assert figures["two: tokens"] == 50
    assert figures["two: cpu_s_per_token"] > 0
    assert figures["engine_rss_mb"] > 50


# --- rounds and tables ---


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Who was measured with which seed; "auto" is twice as fast as all others."""
    calls: list[tuple[str, int]] = []

    def made_up(mode: str, cases: Sequence[Case], work: Work, seed: int) -> Metrics:
        calls.append((mode, seed))
        pace = 20.0 if mode == "auto" else 10.0
        figures = {metric: pace for metric, _ in speculation.COLUMNS.values()}
        found = {f"{case.name}: {metric}": value for case in cases for metric, value in figures.items()}
        return {**found, "engine_rss_mb": 100.0 + pace, "vram_mb": NAN}

    monkeypatch.setattr(speculation, "measure", made_up)
    return calls


def test_rounds_reverse_their_order_and_have_their_own_texts(tmp_path: Path, measured: list[tuple[str, int]]) -> None:
    scenario = Scenario("three", ("off", "auto", "llama"), SCENARIOS["edit"].cases)
    samples = speculation.run_rounds(scenario, work(tmp_path), options(2))
    assert measured == [("off", 50), ("auto", 50), ("llama", 50), ("llama", 51), ("auto", 51), ("off", 51)]
    assert samples.of("auto", "edit: output_tok_s") == [20.0, 20.0]


def test_a_disturbed_round_is_measured_again(
    tmp_path: Path, measured: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([0.0, 0.9, 0.0, 0.0])
    monkeypatch.setattr(machine.Competition, "end", lambda self: next(readings))
    scenario = Scenario("two", ("off", "auto"), SCENARIOS["edit"].cases)
    samples = speculation.run_rounds(scenario, work(tmp_path), options(1, redo_above=0.1))
    assert (samples.rounds, samples.disturbed) == (1, 1)
    assert [seed for _, seed in measured] == [50, 50, 51, 51]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_bar_is_about_what_its_scenario_measures(
    name: str, tmp_path: Path, measured: list[tuple[str, int]]
) -> None:
    scenario = SCENARIOS[name]
    samples = speculation.run_rounds(scenario, work(tmp_path), options(2))
    found = {result.row.title: result for result in speculation.results(scenario, samples)}
    assert len(found) == len(scenario.bars)
    for bar in scenario.bars:
        result = found[bar.named().title]
        expected = 10.0 if not bar.base else 2.0 if bar.mode == "auto" else 1.0
        assert result.estimate.median == pytest.approx(expected * (bar.row.scale if not bar.base else 1.0))


def test_a_table_is_relative_to_the_first_mode(tmp_path: Path, measured: list[tuple[str, int]]) -> None:
    scenario = SCENARIOS["edit"]
    samples = speculation.run_rounds(scenario, work(tmp_path), options(2))
    headings, _, off, auto, *_ = speculation.case_table(scenario, samples, "edit").splitlines()
    cells = {mode: [cell.strip() for cell in line.split("|")[1:-1]] for mode, line in (("off", off), ("auto", auto))}
    assert [cells["off"][1], cells["auto"][1]] == ["1", "2"]
    assert headings.split("|")[-2].strip() == "+ RSS MB"
    assert [cells["off"][-1], cells["auto"][-1]] == ["0", "10"]


# --- the host ---


def test_the_host_bench_guesses_three_for_each_of_eight() -> None:
    """Were nothing guessed, nothing would be measured."""
    rows = np.random.default_rng(1).normal(0, 3, (32, 500)).astype(np.float32)
    bench = speculation_host.Bench(speculation_host.SAMPLINGS["recommended"], rows)
    bench.run(40)
    figures = bench.figures()
    assert figures["guesses"] == 24
    assert all(figures[part] > 0 for part in (*speculation_host.PARTS, "draws", "plain draws"))
    text = speculation_host.report({"fine": {**figures, "total": 0.5}, "slow": {**figures, "total": 0.51}})
    assert [line.split("|")[-2].strip() for line in text.splitlines()[2:]] == ["met", "MISSED"]


def test_a_scenario_of_some_modes_keeps_the_bars_that_these_are_enough_for() -> None:
    scenario = SCENARIOS["edit"].of_modes(["auto", "off", "draft"])
    assert scenario.modes == ("off", "auto")
    assert {(bar.mode, bar.base) for bar in scenario.bars} == {("auto", "off")}
    assert SCENARIOS["self"].of_modes(["draft 3"]).bars[0].base == ""
