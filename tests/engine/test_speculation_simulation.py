"""The controller against made-up machines and texts: nobody is slowed, and what can be gained is gained.

Seconds are true costs, without the noise that the controller sees, so results are the same on every machine.
"""

import statistics
from collections.abc import Mapping, Sequence

import pytest

from forgelm.engine.speculation import Choice, Option, Speculator
from forgelm.ipc.messages import Drafting
from tests.engine.simulation import CPU, GPU, Machine, Run, Server, Text, curve

CURVES = {"cpu": CPU, "gpu": GPU}
EARLY = 64
SLOWER = 1.02
SEEDS = range(3)
DEPTH = 8


def server(
    points: Mapping[int, float],
    drafters: tuple[str, ...] = ("ngram",),
    *,
    uniform: bool = False,
    seed: int = 0,
    depth: int = DEPTH,
    growth: float = 0.3,
    measured: bool = True,
) -> Server:
    """A server whose warm-up measured each number of rows five times."""
    machine = Machine(points, seed=seed, growth=growth)
    rows = [rows for rows in points if rows <= 64] if measured else []
    seconds = {count: statistics.median(machine.measured(curve(points, count)) for _ in range(5)) for count in rows}
    controller = Speculator(drafters=drafters, depth=depth, rows=64, uniform=uniform, row_seconds=seconds)
    return Server(machine, controller, uniform, seed)


def steady(chance: float) -> Text:
    return Text(lambda token: chance)


def check_nobody_is_slowed(runs: Sequence[Run], points: Mapping[int, float]) -> None:
    """At no token has anyone lost more than 2 % of the time so far, and of that of the first 64 tokens."""
    plain = curve(points, len(runs))
    for run in runs:
        for _, seconds, off in run.marks:
            assert seconds <= SLOWER * off + (SLOWER - 1) * EARLY * plain


def fixed_speed(points: Mapping[int, float], chance: float, sequences: int, drafter: str, *, uniform: bool) -> float:
    """The best that any fixed depth gives, on average of all sequences."""
    best = 1.0
    for depth in (1, 2, 3, 4, 6, 8):
        always = server(points, (drafter,), uniform=uniform)
        always.fixed = lambda options, depth=depth: [_choice(option, drafter, depth) for option in options]
        runs = always.serve([steady(chance)] * sequences, 600)
        best = max(best, statistics.mean(run.speed(200, 600) for run in runs))
    return best


def _choice(option: Option, drafter: str, depth: int) -> Choice:
    return Choice(drafter, depth) if drafter != "ngram" or option.found else Choice()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("sequences", [1, 2, 4, 8])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("drafters", [("ngram",), ("draft",), ("ngram", "mtp")])
@pytest.mark.parametrize("machine", CURVES)
def test_nobody_is_slowed(
    machine: str, drafters: tuple[str, ...], uniform: bool, sequences: int, chance: float, seed: int
) -> None:
    points = CURVES[machine]
    runs = server(points, drafters, uniform=uniform, seed=seed).serve([steady(chance)] * sequences, 300)
    check_nobody_is_slowed(runs, points)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("machine", CURVES)
def test_nobody_is_slowed_where_the_text_changes(machine: str, measured: bool) -> None:
    """A text that is easy to guess turns bad, every 100 tokens: what was learned is wrong each time."""
    points = CURVES[machine]
    for seed in SEEDS:
        for sequences in (1, 4):
            texts = [Text(lambda token: 0.95 if token // 100 % 2 == 0 else 0.02)] * sequences
            check_nobody_is_slowed(server(points, seed=seed, measured=measured).serve(texts, 600), points)


@pytest.mark.parametrize("machine", CURVES)
def test_bystanders_are_not_slowed(machine: str) -> None:
    """Some have guesses that nearly always come true, others asked for none; they share every step."""
    points = CURVES[machine]
    for seed in SEEDS:
        silent = Text(lambda token: 0.0, drafting=Drafting("off"))
        runs = server(points, seed=seed).serve([steady(0.95), steady(0.95), silent, silent], 600)
        check_nobody_is_slowed(runs, points)
        assert runs[2].track.drafted == 0


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(
    ("machine", "sequences", "drafter", "uniform"),
    [
        ("gpu", 1, "ngram", False),
        ("gpu", 1, "mtp", True),
        ("gpu", 2, "ngram", True),
        ("gpu", 4, "ngram", False),
        ("gpu", 8, "ngram", True),
        ("cpu", 1, "ngram", False),
        ("cpu", 1, "draft", True),
    ],
)
def test_what_can_be_gained_is_gained(machine: str, sequences: int, drafter: str, uniform: bool, chance: float) -> None:
    """After 200 tokens, on average of all, nine tenths of what the best depth would give from the start; with eight,
    who all have to be found out about, a little less."""
    points = CURVES[machine]
    speeds = []
    for seed in SEEDS:
        runs = server(points, (drafter,), uniform=uniform, seed=seed).serve([steady(chance)] * sequences, 600)
        speeds += [run.speed(200, 600) for run in runs]
    share = 0.9 if sequences < 8 else 0.85
    assert statistics.mean(speeds) >= share * fixed_speed(points, chance, sequences, drafter, uniform=uniform)


def test_a_machine_bound_by_computing_gains_from_sure_guesses() -> None:
    for seed in SEEDS:
        (run,) = server(CPU, seed=seed).serve([steady(0.95)], 600)
        assert run.off >= 1.3 * run.seconds


def test_a_tile_of_rows_that_costs_less_than_fewer_is_used() -> None:
    """64 rows take less than 48: nobody would get there step by step."""
    sure = server(CPU, depth=63, growth=0.0)
    (run,) = sure.serve([Text(lambda token: 0.998)], 3_000, most=63)
    shallow = server(CPU, depth=32, growth=0.0)
    (other,) = shallow.serve([Text(lambda token: 0.998)], 3_000, most=32)
    assert run.speed(1_000, 3_000) > 1.2 * other.speed(1_000, 3_000)


@pytest.mark.parametrize("machine", CURVES)
def test_it_goes_on_soon_after_a_text_has_become_good(machine: str) -> None:
    """300 tokens that can't be guessed, then some that can: within 100 tokens it is as fast as if it had known."""
    for seed in SEEDS:
        text = Text(lambda token: 0.95 if token >= 300 else 0.02)
        (run,) = server(CURVES[machine], seed=seed).serve([text], 1_000)
        (known,) = server(CURVES[machine], seed=seed).serve([steady(0.95)], 1_000)
        assert run.speed(400, 1_000) >= 0.9 * known.speed(400, 1_000)


def test_a_hopeless_server_hardly_tries() -> None:
    """After twenty requests whose guesses were all wrong the next one makes one in 50 tokens."""
    hopeless = server(CPU)
    first = hopeless.serve([steady(0.0)], 200)[0].track.drafted
    for _ in range(20):
        last = hopeless.serve([steady(0.0)], 200)[0].track.drafted
    assert last <= 4
    assert first > last


def test_a_hopeless_server_finds_out_when_that_has_changed() -> None:
    changed = server(CPU)
    for _ in range(10):
        changed.serve([steady(0.0)], 200)
    (run,) = changed.serve([steady(0.95)], 600)
    assert run.speed(200, 600) > 1.3


def test_of_two_drafters_the_better_one_is_used() -> None:
    """Here look-ups are nearly always wrong and the model nearly always right, and the other way round."""
    for wrong, right in (("ngram", "mtp"), ("mtp", "ngram")):
        both = server(GPU, ("ngram", "mtp"))
        text = Text(lambda token: 0.9, worse=wrong)
        (run,) = both.serve([text], 1_000)
        assert run.guessed[right] > 10 * run.guessed[wrong]
        assert run.speed(200, 1_000) > 2.0
