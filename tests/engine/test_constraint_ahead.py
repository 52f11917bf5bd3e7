"""Grammars while guesses are verified: a matcher that went ahead and back again is as one that never went."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.engine.constraint import GrammarMatcher
from forgelm.engine.plan import MatchFailed
from tests.engine.grammars import Setup, allowed, take

YES_OR_NO = 'start: "yes" | "no"'


@pytest.fixture(scope="module")
def starter(starter_path: Path) -> Iterator[Setup]:
    setup = Setup(starter_path)
    yield setup
    setup.close()


@pytest.fixture(scope="module")
def qwen(qwen35_vocab_path: Path) -> Iterator[Setup]:
    """Its `<think>` and `<tool_call>` are user-defined tokens, which text is tokenized to whatever one asks."""
    setup = Setup(qwen35_vocab_path)
    yield setup
    setup.close()


WALKED = {
    "letters": ('start: "a" /[a-d]{0,6}/ "z"', ()),
    "open end": ('start: ("ab" | "ba")+', ()),
    "forced": ('start: "The weather in " /[A-Z][a-z]+/ " is " ("fine" | "bad") " today."', ()),
    "json": ('start: "{" (pair ("," pair)*)? "}"\npair: /"[a-z]{1,3}"/ ":" (/[0-9]{1,3}/ | "null")', ()),
}


def seen(matcher: GrammarMatcher) -> tuple[bytes, tuple[int, ...], bool]:
    mask = matcher.mask()
    return b"" if mask is None else mask.tobytes(), matcher.forced(), matcher.finished


def fresh(setup: Setup, grammar: str, triggers: tuple[int, ...], tokens: list[int]) -> GrammarMatcher:
    matcher = setup.open(grammar, *triggers)
    for token in tokens:
        matcher.advance(token)
    return matcher


def step(setup: Setup, matcher: GrammarMatcher, rng: random.Random) -> int:
    """A token that may follow: a forced one, an end, or any other."""
    forced = matcher.forced()
    if forced and rng.random() < 0.5:
        return forced[0]
    choices = sorted(allowed(matcher))
    ends = sorted(set(choices) & set(setup.vocabulary.end_tokens()))
    return rng.choice(ends) if ends and rng.random() < 0.2 else rng.choice(choices)


@pytest.mark.parametrize("name", WALKED)
@pytest.mark.parametrize("seed", range(4))
def test_what_was_taken_back_was_never_there(starter: Setup, name: str, seed: int) -> None:
    """Random ways ahead and back, ends and what comes behind them included."""
    grammar, triggers = WALKED[name]
    rng = random.Random(seed)
    matcher, taken = starter.open(grammar, *triggers), list[int]()
    for _ in range(12):
        for _ in range(rng.randint(1, 5)):
            taken.append(step(starter, matcher, rng))
            matcher.advance(taken[-1])
        back = rng.randint(0, len(taken))
        matcher.rollback(back)
        taken = taken[: len(taken) - back]
        assert seen(matcher) == seen(fresh(starter, grammar, triggers, taken))


def test_a_way_back_may_lead_out_of_a_grammar_that_a_trigger_began(qwen: Setup) -> None:
    (call,) = qwen.tokens("<tool_call>", special=True)
    grammar = 'start: <tool_call> "call" /[a-c]{1,3}/ </tool_call>'
    out = 0
    for seed in range(4):
        rng = random.Random(seed)
        matcher, taken = qwen.open(grammar, call), list[int]()
        for _ in range(6):
            for _ in range(rng.randint(1, 4)):
                outside = matcher.mask() is None
                token = rng.choice([call, *qwen.tokens(" hello there")]) if outside else step(qwen, matcher, rng)
                taken.append(token)
                matcher.advance(token)
            inside = matcher.mask() is not None
            back = rng.randint(0, min(5, len(taken)))
            matcher.rollback(back)
            taken = taken[: len(taken) - back]
            out += inside and matcher.mask() is None
            assert seen(matcher) == seen(fresh(qwen, grammar, (call,), taken))
    assert out


@pytest.mark.parametrize("name", WALKED)
@pytest.mark.parametrize("seed", range(4))
def test_as_many_tokens_are_accepted_as_could_be_taken_in(starter: Setup, name: str, seed: int) -> None:
    grammar, triggers = WALKED[name]
    rng = random.Random(seed)
    matcher, ends = starter.open(grammar, *triggers), starter.vocabulary.end_tokens()
    for _ in range(8):
        walker, offered = fresh(starter, grammar, triggers, []), list[int]()
        for _ in range(rng.randint(1, 5)):
            offered.append(step(starter, walker, rng))
            walker.advance(offered[-1])
            if offered[-1] in ends:
                break
        good = len(offered)
        wrong = rng.choice(sorted(set(range(200, 4000)) - allowed(walker)))
        before = seen(matcher)
        assert matcher.accepts(offered) == good
        assert matcher.accepts([*offered, wrong, *offered]) == good
        assert seen(matcher) == before


def test_before_a_trigger_all_is_accepted_and_after_it_what_the_grammar_takes(qwen: Setup) -> None:
    (call,) = qwen.tokens("<tool_call>", special=True)
    matcher = qwen.open('start: <tool_call> "call" "!"', call)
    words, good, bad = qwen.tokens("I could"), qwen.tokens("call"), qwen.tokens("will")
    assert matcher.accepts(words) == len(words)
    assert matcher.accepts([*words, call]) == len(words) + 1
    assert matcher.accepts([*words, call, *good, *words]) == len(words) + 1 + len(good)
    assert matcher.accepts([call, *bad]) == 1
    assert matcher.mask() is None


def test_a_finished_grammar_accepts_its_end_alone(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    take(matcher, starter.tokens("no"))
    assert matcher.accepts([starter.vocabulary.eos]) == 1
    assert matcher.accepts(starter.tokens("no")) == 0
    assert matcher.accepts([]) == 0


def test_a_grammar_that_failed_accepts_nothing_and_stays_failed(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    with pytest.raises(MatchFailed):
        matcher.advance(starter.tokens("a")[0])
    assert matcher.accepts(starter.tokens("no")) == 0
    matcher.rollback(1)
    with pytest.raises(MatchFailed):
        matcher.mask()


def test_a_grammar_that_is_none_accepts_nothing(starter: Setup) -> None:
    assert starter.open("start: nonsense here").accepts(starter.tokens("no")) == 0
