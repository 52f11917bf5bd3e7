"""Grammars over real vocabularies: what they let through, what they force, and where they end."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forgelm.engine.constraint import Constraints, GrammarMatcher
from forgelm.engine.plan import MatchFailed
from forgelm.ipc.messages import Constraint
from forgelm.llama.guidance import Guidance
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


def test_a_mask_has_a_bit_for_each_token_that_may_follow(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    mask = matcher.mask()
    assert mask is not None
    assert (mask.dtype, mask.shape) == (np.dtype(np.int32), ((starter.vocabulary.size + 31) // 32,))
    texts = {starter.vocabulary.pieces[token] for token in allowed(matcher)}
    assert texts == {b"y", b"ye", b"yes", b"n", b"no"}


def test_the_array_of_a_mask_is_used_again(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    first = matcher.mask()
    matcher.advance(starter.tokens("yes")[0])
    assert matcher.mask() is first


def test_end_tokens_are_allowed_exactly_where_the_answer_may_end(starter: Setup) -> None:
    ends = set(starter.vocabulary.end_tokens())
    assert len(ends) > 1
    matcher = starter.open('start: "a" "b"?')
    assert not ends & allowed(matcher)
    matcher.advance(starter.tokens("a")[0])
    assert ends < allowed(matcher)
    assert not matcher.finished
    matcher.advance(starter.tokens("b")[0])
    assert allowed(matcher) == ends
    assert matcher.finished


def test_an_end_token_ends_it_where_it_may(starter: Setup) -> None:
    for end in starter.vocabulary.end_tokens():
        matcher = starter.open('start: "a"+')
        matcher.advance(starter.tokens("a")[0])
        assert not matcher.finished
        matcher.advance(end)
        assert matcher.finished
        assert allowed(matcher) == set(starter.vocabulary.end_tokens())


def test_an_end_token_too_early_is_refused(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    with pytest.raises(MatchFailed):
        matcher.advance(starter.vocabulary.eos)


def test_after_the_end_only_end_tokens_are_taken(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    take(matcher, starter.tokens("no"))
    for end in starter.vocabulary.end_tokens():
        matcher.advance(end)
        assert matcher.finished
    with pytest.raises(MatchFailed):
        matcher.advance(starter.tokens("a")[0])


@pytest.mark.parametrize("grammar", ['start: "a" "b"', 'start: "yes"', "start: /[0-9]{3}x/"])
def test_what_is_forced_is_what_the_mask_allows(starter: Setup, grammar: str) -> None:
    matcher = starter.open(grammar)
    while not matcher.finished:
        forced = matcher.forced()
        if forced:
            assert allowed(matcher) == {forced[0]}
        matcher.advance(forced[0] if forced else min(allowed(matcher)))
    assert matcher.forced() == ()


def test_a_grammar_without_a_choice_is_forced_to_its_end(starter: Setup) -> None:
    matcher = starter.open('start: "The weather in " /[A-Z]/ " is fine, and so it will be tomorrow."')
    forced = matcher.forced()
    assert starter.text(list(forced)) == "The weather in"
    take(matcher, list(forced))
    assert matcher.forced() == ()
    take(matcher, starter.tokens(" P"))
    rest = matcher.forced()
    assert starter.text(list(rest)) == " is fine, and so it will be tomorrow."
    take(matcher, list(rest))
    assert (matcher.finished, matcher.forced()) == (True, ())


def test_nothing_is_bound_before_a_trigger_and_the_trigger_is_the_first_token(qwen: Setup) -> None:
    (call,) = qwen.tokens("<tool_call>", special=True)
    (end,) = qwen.tokens("</tool_call>", special=True)
    matcher = qwen.open('start: <tool_call> "call" </tool_call>', call)
    for token in [*qwen.tokens("I could call"), qwen.vocabulary.eos]:
        matcher.advance(token)
        assert (matcher.mask(), matcher.forced(), matcher.finished) == (None, (), False)
    matcher.advance(call)
    assert matcher.forced() == (*qwen.tokens("call"), end)
    take(matcher, [*qwen.tokens("call"), end])
    assert matcher.finished


def test_text_never_turns_into_a_mark(qwen: Setup) -> None:
    """Unless it is told otherwise llama.cpp reads `<think>` in any text as the token that opens the thinking."""
    marks = {token for name in ("<think>", "</think>", "<tool_call>") for token in qwen.tokens(name, special=True)}
    anything = qwen.open("start: /(.|\\n)*/")
    assert not marks & allowed(anything)
    forced = qwen.open('start: "a <think>b</think>" /c+/')
    tokens = forced.forced()
    assert not marks & set(tokens)
    assert qwen.text(list(tokens)) == "a <think>b</think>"
    for token in tokens:
        forced.advance(token)
    take(forced, qwen.tokens("c"))


def test_white_space_is_text_though_it_is_user_defined(gemma_path: Path) -> None:
    gemma = Setup(gemma_path)
    try:
        tokens = gemma.tokens("a\n\n\nb")
        assert len(tokens) == 3
        take(gemma.open("start: /[ab\\n]+/"), tokens)
    finally:
        gemma.close()


def test_matchers_of_one_grammar_are_apart(starter: Setup) -> None:
    first, second = starter.open(YES_OR_NO), starter.open(YES_OR_NO)
    take(first, starter.tokens("yes"))
    assert not second.finished
    take(second, starter.tokens("no"))
    with pytest.raises(MatchFailed):
        first.advance(starter.tokens("no")[0])
    take(starter.open(YES_OR_NO), starter.tokens("no"))


def test_what_the_grammar_does_not_allow_fails_and_stays_failed(starter: Setup) -> None:
    matcher = starter.open(YES_OR_NO)
    with pytest.raises(MatchFailed, match="can't be followed"):
        matcher.advance(starter.tokens("maybe")[0])
    for ask in (matcher.mask, matcher.forced):
        with pytest.raises(MatchFailed):
            ask()
    assert not matcher.finished


@pytest.mark.parametrize(
    "grammar", ["", "start: missing", "start: /(/", "start: <nosuch>", "start: <[999999]>", '{"grammars": 3}', "{"]
)
def test_a_grammar_that_cannot_be_compiled_fails_in_one_line(starter: Setup, grammar: str) -> None:
    for ask in (GrammarMatcher.mask, GrammarMatcher.forced, lambda matcher: matcher.advance(1)):
        with pytest.raises(MatchFailed) as failure:
            ask(starter.open(grammar))
        assert str(failure.value).count("\n") == 0
        assert len(str(failure.value)) < 400
    take(starter.open(YES_OR_NO), starter.tokens("yes"))


def test_a_grammar_beyond_the_limits_fails(starter: Setup) -> None:
    """A deterministic automaton of this needs 2¹⁸ states, which would take half a gigabyte."""
    matcher = starter.open("start: /(.*a.{18}b)+/")
    letters = [starter.tokens(letter)[0] for letter in "ab"]
    numbers = random.Random(1)

    def walk() -> None:
        while True:
            matcher.mask()
            matcher.advance(numbers.choice(letters))

    with pytest.raises(MatchFailed, match="states"):
        walk()
    # What one answer has run into is nothing to the next with the same grammar.
    take(starter.open("start: /(.*a.{18}b)+/"), letters)


def test_a_tokenizer_that_cannot_be_made_fails_requests_only() -> None:
    def broken() -> Guidance:
        raise ValueError("no vocabulary")

    constraints = Constraints(broken)
    with pytest.raises(MatchFailed, match="no vocabulary"):
        constraints.open(Constraint(YES_OR_NO)).mask()
    constraints.close()


def test_closing_fails_what_waits(starter_path: Path) -> None:
    setup = Setup(starter_path)
    matchers = [setup.open(f'start: "{number}"') for number in range(20)]
    setup.close()
    with pytest.raises(MatchFailed, match="closing"):
        matchers[-1].mask()
