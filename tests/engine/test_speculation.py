"""What the controller lets whom guess, by what a request says and what the server has; and its accounts.

How well it chooses is shown by simulation, beside this.
"""

from collections.abc import Sequence

import pytest

from forgelm.engine.speculation import NO_GUESSES, Choice, Option, Speculator, Track
from forgelm.ipc.messages import Drafting
from tests.engine.simulation import GPU

FLAT = {1: 0.01, 64: 0.01}


def controller(
    *drafters: str, depth: int = 8, rows: int = 64, uniform: bool = False, adaptive: bool = True
) -> Speculator:
    return Speculator(drafters=drafters, depth=depth, rows=rows, uniform=uniform, adaptive=adaptive, row_seconds=FLAT)


def settle(speculator: Speculator, tracks: Sequence[Track]) -> None:
    """Steps without guesses, until their cost is known."""
    for _ in range(10):
        speculator.choose([Option(track, 0) for track in tracks], len(tracks))
        plain(speculator, len(tracks))


def plain(speculator: Speculator, sequences: int) -> None:
    speculator.observe([], sequences=sequences, rows=sequences, seconds=0.01, drafting=0.0, alone=True)


def verified(speculator: Speculator, track: Track, choice: Choice, accepted: int, seconds: float = 0.01) -> None:
    speculator.observe(
        [(track, choice, choice.depth, accepted)],
        sequences=1,
        rows=1 + choice.depth,
        seconds=seconds,
        drafting=0.0,
        alone=True,
    )


def found(track: Track, most: int = 8, match: int = 16) -> Option:
    return Option(track, most, most, match)


def test_a_request_that_turns_it_off_is_left_alone() -> None:
    speculator = controller("ngram", "mtp")
    track = speculator.begin(Drafting("off"))
    settle(speculator, [track])
    assert not speculator.wants_lookup(track)
    assert speculator.choose([found(track)], 1) == [NO_GUESSES]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("drafter", ["ngram", "mtp"])
def test_a_request_gets_the_drafter_that_it_names(drafter: str, adaptive: bool) -> None:
    speculator = controller("ngram", "mtp", adaptive=adaptive)
    track = speculator.begin(Drafting(drafter))  # type: ignore[arg-type]
    settle(speculator, [track])
    assert speculator.choose([found(track)], 1)[0].drafter == drafter


def test_a_drafter_that_is_not_loaded_is_not_replaced() -> None:
    speculator = controller("ngram")
    track = speculator.begin(Drafting("draft"))
    settle(speculator, [track])
    assert speculator.choose([found(track)], 1) == [NO_GUESSES]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("asked", "most", "expected"), [(0, 8, 8), (3, 8, 3), (20, 8, 8), (0, 2, 2), (0, 0, 0)])
def test_depth_is_bounded_by_all_who_have_a_say(asked: int, most: int, expected: int, adaptive: bool) -> None:
    """On a machine where rows cost nothing all that is allowed is guessed."""
    speculator = controller("ngram", adaptive=adaptive)
    track = speculator.begin(Drafting(depth=asked))
    settle(speculator, [track])
    for _ in range(3):
        (choice,) = speculator.choose([found(track, most)], 1)
        assert choice.depth == expected
        verified(speculator, track, choice, choice.depth)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_step_has_no_more_guesses_than_rows_for_them(adaptive: bool) -> None:
    speculator = controller("ngram", rows=10, adaptive=adaptive)
    tracks = [speculator.begin(Drafting()) for _ in range(3)]
    settle(speculator, tracks)
    choices = speculator.choose([found(track) for track in tracks], 3)
    assert sum(choice.depth for choice in choices) == 10


def test_where_depths_must_be_equal_they_are() -> None:
    speculator = controller("ngram", rows=12, uniform=True)
    tracks = [speculator.begin(Drafting()) for _ in range(2)]
    settle(speculator, tracks)
    choices = speculator.choose([found(tracks[0], 5), found(tracks[1], 6)], 2)
    assert [choice.depth for choice in choices] == [5, 5]


def test_where_depths_must_be_equal_not_adaptive_takes_the_depth_with_most_guesses() -> None:
    speculator = controller("ngram", rows=12, uniform=True, adaptive=False)
    tracks = [speculator.begin(Drafting()) for _ in range(4)]
    options = [found(tracks[0], 2), found(tracks[1], 5), Option(tracks[2], 8), found(tracks[3], 6)]
    assert [choice.depth for choice in speculator.choose(options, 4)] == [0, 5, 0, 5]


def test_a_second_decode_is_paid_for() -> None:
    """Where rows cost nothing but decodes do, guesses for one of two sequences would take twice the time."""
    speculator = controller("ngram", uniform=True)
    tracks = [speculator.begin(Drafting()) for _ in range(2)]
    settle(speculator, tracks)
    assert speculator.choose([found(tracks[0]), Option(tracks[1], 0)], 2) == [NO_GUESSES] * 2


def test_not_adaptive_takes_the_model_where_a_look_up_found_nothing() -> None:
    speculator = controller("ngram", "draft", adaptive=False)
    track = speculator.begin(Drafting())
    assert speculator.choose([Option(track, 8)], 1) == [Choice("draft", 8)]
    assert speculator.choose([Option(track, 8, 3, 5)], 1) == [Choice("ngram", 3)]


def test_without_any_knowledge_the_first_steps_are_plain() -> None:
    """Nothing was measured at the start: a step's plain cost must be seen before anything is risked."""
    speculator = Speculator(drafters=("ngram",), depth=8, rows=64, row_seconds={})
    track = speculator.begin(Drafting())
    assert speculator.choose([found(track)], 1) == [NO_GUESSES]
    for _ in range(6):
        settle(speculator, [track])
    assert speculator.choose([found(track)], 1)[0].depth > 0


def test_a_request_whose_guesses_fail_is_not_looked_up_in_each_step() -> None:
    speculator = controller("ngram")
    track = speculator.begin(Drafting())
    settle(speculator, [track])
    looked_up = 0
    for step in range(400):
        wanted = speculator.wants_lookup(track)
        looked_up += wanted and step >= 200
        (choice,) = speculator.choose([found(track) if wanted else Option(track, 8)], 1)
        if choice.depth:
            verified(speculator, track, choice, 0, seconds=0.01 * (1 + choice.depth))
        else:
            plain(speculator, 1)
    assert looked_up < 30


def test_an_account_that_is_empty_stops_all_guesses_beside_it() -> None:
    """A sequence that has lost what it may lose is slowed by nobody any more, however sure the others are."""
    speculator = Speculator(drafters=("ngram",), depth=8, rows=64, row_seconds=GPU)
    tracks = [speculator.begin(Drafting()), speculator.begin(Drafting("off"))]
    settle(speculator, tracks)
    options = [found(tracks[0]), Option(tracks[1], 0)]
    assert speculator.choose(options, 2)[0].depth > 0
    tracks[1].balance = -100.0
    assert speculator.choose(options, 2) == [NO_GUESSES] * 2


def test_counters_are_those_of_the_guesses() -> None:
    speculator = controller("mtp")
    track = speculator.begin(Drafting())
    settle(speculator, [track])
    choice = Choice("mtp", 4)
    for accepted in (4, 1):
        speculator.choose([Option(track, 8)], 1)
        speculator.observe(
            [(track, choice, 4, accepted)], sequences=1, rows=5, seconds=0.01, drafting=0.002, alone=True
        )
    assert (track.drafted, track.accepted, track.verifications) == (8, 5, 2)
    assert track.drafting == pytest.approx(0.004)


def test_time_spent_on_a_model_s_guesses_is_shared_by_those_who_asked() -> None:
    speculator = controller("ngram", "mtp")
    tracks = [speculator.begin(Drafting()) for _ in range(3)]
    settle(speculator, tracks)
    speculator.choose([found(track) for track in tracks], 3)
    names = ("mtp", "ngram", "mtp")
    results = [(track, Choice(name, 2), 2, 2) for track, name in zip(tracks, names, strict=True)]
    speculator.observe(results, sequences=3, rows=9, seconds=0.01, drafting=0.004, alone=True)
    assert [track.drafting for track in tracks] == pytest.approx([0.002, 0.0, 0.002])


def test_drafting_that_led_to_no_guess_is_paid_for() -> None:
    """A model may be asked and answer nothing; the step was longer all the same."""
    speculator = controller("mtp")
    track = speculator.begin(Drafting())
    settle(speculator, [track])
    speculator.choose([Option(track, 8)], 1)
    speculator.observe([], sequences=1, rows=1, seconds=0.01, drafting=0.005, alone=True)
    assert track.balance == pytest.approx(-0.005)


def test_a_step_with_a_prompt_in_it_teaches_no_cost() -> None:
    speculator = controller("ngram")
    track = speculator.begin(Drafting())
    settle(speculator, [track])
    decoded = track.decoded
    speculator.choose([Option(track, 8)], 1)
    speculator.observe([], sequences=1, rows=1, seconds=5.0, drafting=0.0, alone=False)
    assert track.decoded - decoded == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_step_in_which_nobody_decodes_changes_nothing(adaptive: bool) -> None:
    speculator = controller("ngram", adaptive=adaptive)
    assert speculator.choose([], 0) == []
    speculator.observe([], sequences=0, rows=0, seconds=0.5, drafting=0.0, alone=False)
    track = speculator.begin(Drafting())
    settle(speculator, [track])
    assert speculator.choose([found(track)], 1)[0].depth == 8


def test_a_drafting_model_keeps_up_only_where_its_guesses_gain_anything() -> None:
    """One that is as slow as the model itself never does, a quick one does unless rows are dear."""
    cheap, dear = {1: 1.0, 8: 1.05, 16: 1.1, 64: 2.0}, {rows: float(rows) for rows in (1, 2, 4, 8, 16, 64)}
    for curve, sequences, drafting, pays in (
        (cheap, 1, 0.1, True),
        (cheap, 1, 2.0, False),
        (dear, 1, 0.1, False),
        (dear, 8, 0.1, False),
    ):
        speculator = Speculator(drafters=("draft",), depth=4, rows=32, row_seconds=curve)
        track = speculator.begin(Drafting())
        speculator.choose([Option(track, 4)], 1)
        result = [(track, Choice("draft", 1), 1, 1)]
        speculator.observe(result, sequences=1, rows=2, seconds=curve.get(2, 1.0), drafting=drafting, alone=True)
        assert speculator.drafts_pay(track, sequences) is pays, (curve, sequences, drafting)
    assert not speculator.drafts_pay(speculator.begin(Drafting("off")), 1)
