"""How likely guesses are right: learned, forgotten, and given up soon when a text is lost."""

import random
from itertools import pairwise

import pytest

from forgelm.engine.acceptance import LEAST_GAIN, Evidence, Prior


def teach(evidence: Evidence, chance: float, *, rounds: int = 60, match: int = 16, depth: int = 4) -> None:
    rng = random.Random(5)
    for _ in range(rounds):
        accepted = next((place for place in range(depth) if rng.random() >= chance), depth)
        evidence.observe(match, depth, accepted)


@pytest.mark.parametrize("drafter", ["ngram", "draft", "mtp"])
@pytest.mark.parametrize("chance", [0.5, 0.75, 0.95])
def test_the_chance_is_learned(drafter: str, chance: float) -> None:
    evidence = Evidence(Prior(drafter))
    teach(evidence, chance, rounds=200)
    assert evidence.gains(16, 1)[0] == pytest.approx(chance, abs=0.2)


def test_chances_of_a_chain_fall() -> None:
    gains = Evidence(Prior("mtp")).gains(0, 8)
    assert all(later < earlier for earlier, later in pairwise(gains))
    assert gains[-2] >= LEAST_GAIN


def test_a_longer_match_is_trusted_more_and_grows_as_guesses_come_true() -> None:
    evidence = Evidence(Prior("ngram"))
    short, long = evidence.gains(3, 14), evidence.gains(16, 14)
    assert short[0] < long[0]
    assert (
        evidence.cell(3, 0) < evidence.cell(3, 2) < evidence.cell(3, 5) < evidence.cell(3, 13) == evidence.cell(16, 0)
    )


def test_two_surprises_are_enough_to_stop_and_two_hits_to_go_on() -> None:
    evidence = Evidence(Prior("ngram"))
    teach(evidence, 1.0)
    assert evidence.gains(16, 1)[0] > 0.9
    for _ in range(2):
        evidence.observe(16, 4, 0)
    assert evidence.gains(16, 1)[0] < 0.5
    for _ in range(10):
        evidence.observe(16, 1, 0)
    assert evidence.gains(16, 1)[0] < 0.2
    for _ in range(2):
        evidence.observe(16, 1, 1)
    assert evidence.gains(16, 1)[0] > 0.8


def test_a_server_learns_from_its_requests() -> None:
    prior = Prior("ngram")
    for _ in range(20):
        evidence = Evidence(prior)
        teach(evidence, 0.05)
        evidence.teach()
    assert Evidence(prior).gains(16, 1)[0] < 0.25


def test_one_long_request_does_not_speak_for_all() -> None:
    """It has made a thousand guesses, twenty others four each; those are the rule."""
    prior = Prior("draft")
    for rounds, chance in [(1_000, 0.0), *[(1, 1.0)] * 20]:
        evidence = Evidence(prior)
        teach(evidence, chance, rounds=rounds)
        evidence.teach()
    assert prior.chances()[0] > 0.6


def test_trust_grows_with_what_was_seen() -> None:
    evidence = Evidence(Prior("draft"))
    assert evidence.trust == 0.0
    teach(evidence, 0.9, rounds=3)
    early = evidence.trust
    teach(evidence, 0.9)
    assert 0.0 < early < evidence.trust < 1.0
