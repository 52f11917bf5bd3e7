"""The detokenizer: however the bytes are cut into tokens and the tokens into feeds, the text is the same."""

from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.detokenize import Detokenizer

# Cut characters, invalid bytes, surrogates (ED A0), overlong forms (C0 80, F0 80) and codes beyond Unicode
# (F4 90) are likelier with these than with bytes at large.
AWKWARD = b"a \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff\xc0\xf4\x90"
awkward_bytes = st.lists(st.sampled_from(AWKWARD), max_size=24).map(bytes)
emoji = st.text(alphabet="aé€😀👩‍👧", max_size=12).map(str.encode)


def decode(pieces: list[bytes], groups: list[int]) -> str:
    """All pieces through one detokenizer, `groups[i]` tokens at the i-th feed, then one by one."""
    detokenizer = Detokenizer(pieces)
    parts, start = [], 0
    for size in [*groups, *[1] * len(pieces)]:
        parts.append(detokenizer.feed(range(len(pieces))[start : start + size]))
        start += size
    return "".join(parts) + detokenizer.flush()


@given(st.lists(awkward_bytes | emoji | st.binary(max_size=4), max_size=8), st.lists(st.integers(0, 4)))
def test_any_split_gives_the_text_of_the_joined_bytes(pieces: list[bytes], groups: list[int]) -> None:
    assert decode(pieces, groups) == b"".join(pieces).decode("utf-8", errors="replace")


@given(awkward_bytes | emoji)
def test_one_byte_per_token_is_no_different(data: bytes) -> None:
    assert decode([bytes([byte]) for byte in data], []) == data.decode("utf-8", errors="replace")


def test_a_character_comes_out_when_its_last_byte_does() -> None:
    detokenizer = Detokenizer([b"\xf0\x9f", b"\x98", b"\x80!"])
    assert [detokenizer.feed([token]) for token in range(3)] == ["", "", "😀!"]
    assert detokenizer.flush() == ""


def test_invalid_bytes_do_not_wait() -> None:
    detokenizer = Detokenizer([b"\xff", b"a"])
    assert detokenizer.feed([0]) == "\ufffd"
    assert detokenizer.feed([1, 1]) == "aa"


def test_a_cut_character_is_one_replacement_at_the_end() -> None:
    detokenizer = Detokenizer([b"x\xe2\x82"])
    assert detokenizer.feed([0]) == "x"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_no_tokens_no_text() -> None:
    assert Detokenizer([b"a"]).feed([]) == ""
