"""Where needles lie in a text, and that everything fits the context to the last token."""

import pytest

from forgelm.bench.needles import DEPTHS, hide, make_needles, room
from forgelm.errors import ConfigError


def characters(text: str, *, start: bool) -> tuple[int, ...]:
    assert not start, "needles lie inside a text"
    return tuple(map(ord, text))


NEEDLES = make_needles(characters)
PROSE = (0,) * 10_000


def test_each_needle_lies_at_its_depth_of_the_prose() -> None:
    body = hide(PROSE, NEEDLES, 4096).body
    left = body.count(0)
    assert [needle.depth for needle in NEEDLES] == list(DEPTHS)
    for needle in NEEDLES:
        sentence = needle.ask + needle.answer
        (place,) = [at for at in range(len(body)) if body[at : at + len(sentence)] == sentence]
        assert body[:place].count(0) == left * needle.depth // 100


def test_body_and_questions_fill_the_context_exactly() -> None:
    haystack = hide(PROSE, NEEDLES, 4096)
    assert len(haystack.body) + room(haystack.needles) == 4096


def test_answers_differ_and_are_not_in_the_questions() -> None:
    assert len({needle.answer for needle in NEEDLES}) == len(NEEDLES)
    assert len({needle.ask for needle in NEEDLES}) == len(NEEDLES)
    assert make_needles(characters) == NEEDLES


def test_a_context_of_needles_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"{2 * room(NEEDLES)}"):
        hide(PROSE, NEEDLES, 2 * room(NEEDLES))
