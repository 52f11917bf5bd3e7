"""The search, on a scripted lab: what it takes and refuses, what becomes of failures, when it stops."""

from collections.abc import Mapping

import pytest

from forgelm.bench.judging import Merit
from forgelm.bench.space import Axis, Value
from forgelm.bench.tuning import SEEN, TRIES, Search
from forgelm.bench.tuning_types import Goal, Outcome
from forgelm.errors import MachineError
from tests.bench.labs import ScriptedLab, Told, Truth

UBATCH, KV, THREADS = "engine.n_ubatch", "engine.kv_type", "engine.threads"
DEFAULTS: dict[str, Value] = {UBATCH: 512, KV: "f16", THREADS: 2}
AXES = (Axis(KV, ("q8_0", "q4_0")), Axis(UBATCH, (128, 256)), Axis(THREADS, (1,)))
MERITS = (Merit("decode", higher_is_better=True), Merit("ttft", higher_is_better=False))
FLAT = {"decode": 100.0, "ttft": 1.0}


def goal(**changes: object) -> Goal:
    options = {"merits": MERITS, "axes": AXES, "defaults": DEFAULTS, **changes}
    return Goal(**options)  # type: ignore[arg-type]


def scaled(gains: Mapping[Value, float]) -> Truth:
    """Decode rates that are the product of the gains of a candidate's values; TTFT is always 1 s."""

    def truth(settings: dict[str, Value]) -> Mapping[str, float]:
        rate = 100.0
        for value in settings.values():
            rate *= gains.get(value, 1.0)
        return {"decode": rate, "ttft": 1.0}

    return truth


def search(lab: ScriptedLab, **changes: object) -> Outcome:
    return Search(lab, goal(**changes), Told(), clock=lambda: lab.clock).run()


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {"+".join(map(str, trial.settings.values())) or "default": trial.verdict for trial in outcome.trials}


# --- finding ---


def test_better_values_are_found_axis_by_axis_and_kept() -> None:
    lab = ScriptedLab(scaled({"q8_0": 1.2, 256: 1.1, 128: 0.9}), noise=0.01)
    found = search(lab)
    assert found.winner == {KV: "q8_0", UBATCH: 256}
    assert verdicts(found) == {
        "default": "default",
        "q8_0": "taken",
        "q4_0": "not taken",
        "q8_0+128": "not taken",
        "q8_0+256": "taken",
        "q8_0+256+1": "not taken",
    }
    assert found.final is not None
    assert found.final.ratios["decode"].median == pytest.approx(1.32, rel=0.03)
    assert found.complete


def test_the_winner_meets_the_default_again() -> None:
    lab = ScriptedLab(scaled({"q8_0": 1.2}))
    found = search(lab, pairs=6, final_pairs=9)
    assert lab.stages.count("final") == 9
    assert lab.measured[-1] == {KV: "q8_0"}
    assert len(found.final_samples) == 9


@pytest.mark.parametrize("seed", range(12))
def test_noise_is_not_taken_for_gain(seed: int) -> None:
    """Nothing is better here, and the machine is 10 % off at any time. What slips through one comparison must still
    hold in the last one."""
    lab = ScriptedLab(lambda _settings: FLAT, noise=0.1, seed=seed)
    assert search(lab).winner == {}


@pytest.mark.parametrize("seed", range(12))
def test_a_true_gain_is_found_in_noise(seed: int) -> None:
    lab = ScriptedLab(scaled({256: 1.25}), noise=0.04, seed=seed)
    assert search(lab, axes=(Axis(UBATCH, (256,)),)).winner == {UBATCH: 256}


def test_worse_on_another_figure_is_refused() -> None:
    def truth(settings: dict[str, Value]) -> Mapping[str, float]:
        return {"decode": 150.0, "ttft": 1.2} if settings.get(UBATCH) == 128 else FLAT

    found = search(ScriptedLab(truth, noise=0.01))
    assert found.winner == {}
    (trial,) = [trial for trial in found.trials if trial.settings == {UBATCH: 128}]
    assert trial.verdict == "not taken"
    assert trial.why.startswith("worse on ttft")


def test_a_winner_that_does_not_hold_leaves_the_default() -> None:
    """A candidate that is faster only while the search goes on, as when the machine was busy by chance."""
    lab = ScriptedLab(lambda settings: {"decode": 130.0, "ttft": 1.0} if settings and len(lab.stages) < 9 else FLAT)
    found = search(lab, axes=(Axis(UBATCH, (256,)),), pairs=8)
    assert verdicts(found)["256"] == "taken"
    assert found.winner == {}
    assert found.why.startswith("the best of the search didn't hold against the default, measured again: not better")


def test_a_winner_that_fails_in_the_end_leaves_the_default() -> None:
    def truth(settings: dict[str, Value]) -> Mapping[str, float] | str:
        if not settings:
            return FLAT
        return "out of memory" if len(lab.stages) > 15 else {"decode": 130.0, "ttft": 1.0}

    lab = ScriptedLab(truth)
    found = search(lab, axes=(Axis(UBATCH, (256,)),), pairs=8)
    assert found.winner == {}
    assert "out of memory" in found.why


def test_the_grid_tries_every_combination_once() -> None:
    """Two settings that help only together: one axis at a time can't see that."""

    def truth(settings: dict[str, Value]) -> Mapping[str, float]:
        return {"decode": 140.0, "ttft": 1.0} if settings.get(KV) == "q8_0" and settings.get(UBATCH) == 128 else FLAT

    assert search(ScriptedLab(truth), method="coordinate").winner == {}
    found = search(ScriptedLab(truth), method="grid")
    assert found.winner == {KV: "q8_0", UBATCH: 128}
    assert len(found.trials) == 3 * 3 * 2


# --- failing ---


def test_a_candidate_that_fails_is_a_trial_with_its_reason() -> None:
    def truth(settings: dict[str, Value]) -> Mapping[str, float] | str:
        return "out of memory" if settings.get(KV) == "q8_0" else scaled({256: 1.3})(settings)

    lab = ScriptedLab(truth)
    found = search(lab)
    assert verdicts(found)["q8_0"] == "failed"
    assert found.trials[1].why == "out of memory"
    assert found.winner == {UBATCH: 256}
    assert lab.measured.count({KV: "q8_0"}) == 1


def test_what_can_not_run_is_skipped_and_never_measured() -> None:
    lab = ScriptedLab(scaled({}), refused={"q4_0": "it needs flash attention"})
    found = search(lab)
    assert (found.trials[2].verdict, found.trials[2].why) == ("skipped", "it needs flash attention")
    assert {KV: "q4_0"} not in lab.measured


def test_an_incumbent_that_fails_beside_a_candidate_is_not_its_defeat() -> None:
    lab = ScriptedLab(lambda settings: FLAT if settings or not lab.stages else "the card fell off")
    found = search(lab, axes=(Axis(UBATCH, (256,)),))
    assert found.trials[1].verdict == "not taken"
    assert found.trials[1].why == "the incumbent failed beside it: the card fell off"
    assert len(lab.measured) == TRIES


def test_a_default_that_can_not_run_ends_the_search() -> None:
    with pytest.raises(MachineError, match="the default can't be measured: no such model"):
        search(ScriptedLab(lambda _settings: "no such model"))


# --- quality ---


def test_what_costs_too_much_quality_is_not_taken_but_seen() -> None:
    lab = ScriptedLab(scaled({"q4_0": 2.0, "q8_0": 1.2}), perplexities={"q8_0": 10.05, "q4_0": 10.4})
    found = search(lab, max_quality_loss=0.01)
    assert found.winner == {KV: "q8_0"}
    q4 = found.trials[2]
    assert (q4.verdict, q4.why) == ("not taken", "perplexity +4.0%, and 1.0% is the most")
    assert q4.quality == {"perplexity": 10.4}
    assert lab.measured.count({KV: "q4_0"}) == SEEN
    assert found.trials[0].quality == {"perplexity": 10.0}


def test_a_quality_that_can_not_be_measured_is_no_good_one() -> None:
    found = search(ScriptedLab(scaled({"q8_0": 1.2}), perplexities={"q8_0": 0.0}))
    assert found.winner == {}
    assert found.trials[1].why == "its quality can't be told: the worker died"


# --- time ---


def test_time_that_is_up_ends_the_search_and_leaves_enough_for_the_last_comparison() -> None:
    lab = ScriptedLab(scaled({"q8_0": 1.2}), seconds=10.0)
    found = search(lab, seconds=250.0, pairs=8, final_pairs=12)
    assert found.winner == {KV: "q8_0"}
    assert not found.complete
    assert lab.clock <= 250
    assert lab.stages.count("final") == 12


def test_hopeless_candidates_are_dropped_early() -> None:
    lab = ScriptedLab(scaled({"q8_0": 0.5, "q4_0": 0.5, 128: 0.5, 256: 0.5, 1: 0.5}))
    found = search(lab, pairs=8)
    assert len(lab.measured) == 2 * 5
    assert found.trials[1].why == "worse in each of 2 pairs, by 29.3%"


def test_who_watches_is_told_everything() -> None:
    told = Told()
    lab = ScriptedLab(scaled({"q8_0": 1.2}))
    Search(lab, goal(), told, clock=lambda: lab.clock).run()
    assert [left for _, left in told.begun] == [5, 4, 3, 2, 1, 0, 0]
    assert told.pairs == len(lab.measured)
    assert [trial.verdict for trial in told.ended][:3] == ["default", "taken", "not taken"]
