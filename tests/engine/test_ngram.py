"""The look-up against a plain search of the whole text, and the places where an index goes wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.engine import ngram
from forgelm.engine.ngram import MATCH, NGrams
from forgelm.engine.plan import Tokens


def array(*tokens: int, spare: int = 0) -> Tokens:
    return np.array([*tokens, *[-1] * spare], np.int32)


def indexed(tokens: Tokens, length: int | None = None, sizes: tuple[int, ...] = ngram.SIZES) -> NGrams:
    grams = NGrams(sizes)
    grams.extend(tokens, len(tokens) if length is None else length)
    return grams


def searched(tokens: list[int], most: int, sizes: tuple[int, ...]) -> tuple[list[int], int]:
    """What `find` should say, by looking everywhere."""
    for size in sizes:
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[end - size : end] == tokens[-size:]:
                match = 0
                while match < min(MATCH, end) and tokens[end - 1 - match] == tokens[-1 - match]:
                    match += 1
                period = tokens[end:]
                return [period[place % len(period)] for place in range(most)], match
    return [], 0


def test_what_followed_the_same_tokens_is_found() -> None:
    found = indexed(array(1, 2, 3, 4, 5, 6, 9, 1, 2, 3)).find(array(1, 2, 3, 4, 5, 6, 9, 1, 2, 3), 10, 4)
    assert found.tokens.tolist() == [4, 5, 6, 9]
    assert found.tokens.dtype == np.int32
    assert found.match == 3


def test_the_latest_place_is_taken() -> None:
    tokens = array(1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3)
    assert indexed(tokens).find(tokens, len(tokens), 1).tokens.tolist() == [5]


def test_a_longer_match_goes_before_a_later_one() -> None:
    tokens = array(7, 8, 9, 1, 2, 3, 4, 0, 0, 1, 2, 3, 5, 0, 7, 8, 9, 1, 2, 3)
    found = indexed(tokens).find(tokens, len(tokens), 1)
    assert found.tokens.tolist() == [4]
    assert found.match == 6


@pytest.mark.parametrize("text", [(1, 2, 3), (1, 2, 3, 4, 5, 6, 7), (), (1,), (5, 6)])
def test_a_suffix_does_not_find_itself(text: tuple[int, ...]) -> None:
    found = indexed(array(*text)).find(array(*text), len(text), 4)
    assert (len(found.tokens), found.match) == (0, 0)


def test_a_repetition_goes_on() -> None:
    tokens = array(*[1, 2] * 5)
    found = indexed(tokens).find(tokens, 10, 7)
    assert found.tokens.tolist() == [1, 2, 1, 2, 1, 2, 1]
    assert found.match == 8


def test_one_token_over_and_over_goes_on() -> None:
    tokens = array(*[4] * 30)
    found = indexed(tokens).find(tokens, 30, 5)
    assert found.tokens.tolist() == [4] * 5
    assert found.match == MATCH


def test_nothing_beyond_the_length_is_read() -> None:
    """Arrays are made for the whole answer; what lies behind the known tokens is noise."""
    tokens = array(1, 2, 3, 4, 1, 2, 3, spare=20)
    assert indexed(tokens, 7).find(tokens, 7, 6).tokens.tolist() == [4, 1, 2, 3, 4, 1]


def test_no_guesses_are_made_if_none_are_wanted() -> None:
    tokens = array(*[1, 2] * 5)
    assert len(indexed(tokens).find(tokens, 10, 0).tokens) == 0


def test_equal_hashes_claim_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of 0 a run's key is its last token alone, so that very different runs share it."""
    monkeypatch.setattr(ngram, "_FACTOR", 0)
    tokens = array(1, 2, 3, 4, 9, 8, 3)
    found = indexed(tokens).find(tokens, len(tokens), 2)
    assert (len(found.tokens), found.match) == (0, 0)


@given(
    tokens=st.lists(st.integers(0, 3), max_size=120),
    steps=st.lists(st.integers(1, 60), max_size=40),
    most=st.integers(1, 20),
)
def test_it_finds_what_a_search_finds(tokens: list[int], steps: list[int], most: int) -> None:
    """However the text arrives: token by token, in pieces, or as one long prompt."""
    grown, grams, length = array(*tokens, spare=1), NGrams(), 0
    for step in [*steps, len(tokens)]:
        length = min(length + step, len(tokens))
        grams.extend(grown, length)
        found = grams.find(grown, length, most)
        assert (found.tokens.tolist(), found.match) == searched(tokens[:length], most, ngram.SIZES)


def test_a_long_prompt_and_its_tokens_one_by_one_give_the_same() -> None:
    """One way goes through NumPy, the other doesn't; ids are as large as real ones."""
    text = np.random.default_rng(3).integers(0, 250_000, 3_000).astype(np.int32)
    text[2_000:2_500] = text[700:1_200]
    slow = NGrams()
    for length in range(2_501):
        slow.extend(text, length)
        if length in (2_010, 2_300, 2_500):
            expected = (text[length - 1_300 :][:8].tolist(), min(MATCH, length - 2_000))
            for grams in (slow, indexed(text, length)):
                found = grams.find(text, length, 8)
                assert (found.tokens.tolist(), found.match) == expected
