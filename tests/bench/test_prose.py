"""The text: always there, as long as needed, and refused with a reason when it can't be used."""

from pathlib import Path

import pytest

from forgelm.bench.prose import Prose, default_prose, lengthen, read_prose, reordered
from forgelm.errors import ConfigError

SHORT = Prose("made up", "one\n\ntwo\n\nthree\n\nfour\n\nfive")


def characters(text: str, *, start: bool) -> tuple[int, ...]:
    """A tokenizer: one token a character, −1 at the start."""
    return (*([-1] if start else []), *map(ord, text))


def text_of(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))


def test_the_default_is_long_prose_without_a_paragraph_twice() -> None:
    prose = default_prose()
    paragraphs = prose.text.split("\n\n")
    assert len(prose.text) > 250_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert "raise" in prose.text


def test_a_long_text_is_cut_and_begins_the_sequence() -> None:
    ids, rounds = lengthen(characters, SHORT, 8)
    assert (ids[0], text_of(ids[1:]), rounds) == (-1, "one\n\ntw", 1)


def test_a_short_text_goes_on_in_another_order() -> None:
    ids, rounds = lengthen(characters, SHORT, 70)
    assert len(ids) == 70
    assert rounds == 3
    whole = text_of(ids[1:])
    assert whole.startswith(SHORT.text + reordered(SHORT.text, 1))
    assert sorted(reordered(SHORT.text, 1).split()) == sorted(SHORT.text.split())
    assert len({SHORT.text, reordered(SHORT.text, 1).strip(), reordered(SHORT.text, 2).strip()}) == 3


def test_the_order_is_always_the_same() -> None:
    assert lengthen(characters, SHORT, 500) == lengthen(characters, SHORT, 500)


@pytest.mark.parametrize(("content", "said"), [(b"\xff\xfe\xfa", "isn't UTF-8"), (b" \n ", "is empty")])
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_prose(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_prose(tmp_path / "text")
