"""Thinking split from the answer. Calls have their own tests in tests/text/toolcalls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.output import Content, OutputParser, Reasoning
from forgelm.text.reasoning import Marks
from tests.text.toolcalls.reading import THINK, cuts, read, read_all_ways


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("hm\n</think>\n\nHello", True, "hm", "Hello"),
        ("hm</think>Hello", True, "hm", "Hello"),
        ("a\n\nb \n</think>\n\n Hello \n", True, "a\n\nb", "Hello \n"),
        ("\n</think>\n\nHello", True, "", "Hello"),
        # Some models repeat the mark that the prompt ends with.
        ("<think>\nhm\n</think>\n\nHello", True, "hm", "Hello"),
        # Not in the prompt: the model opens it itself, or doesn't think.
        ("<think>\nhm\n</think>\n\nHello", False, "hm", "Hello"),
        ("\n\n<think>\nhm\n</think>\n\nHello", False, "hm", "Hello"),
        ("\n\nHello", False, "", "\n\nHello"),
        ("Hello <think>\nhm\n</think>\n\n", False, "", "Hello <think>\nhm\n</think>\n\n"),
        ("<thin air", False, "", "<thin air"),
        # Broken off.
        ("hm\n", True, "hm\n", ""),
        ("hm\n</thin", True, "hm\n</thin", ""),
        ("<thi", False, "", "<thi"),
        (" \n", False, "", " \n"),
        ("", True, "", ""),
        # A mark in the answer is text.
        ("a</think>b</think>c", True, "a", "b</think>c"),
        ("a < b </thinkers> c</think>d", True, "a < b </thinkers> c", "d"),
    ],
)
def test_thinking_is_split_off(text: str, opened: bool, reasoning: str, content: str) -> None:
    heard = read_all_ways(text, marks=THINK, opened=opened)
    assert (heard.reasoning, heard.content) == (reasoning, content)


def test_other_marks_are_taken_as_they_are() -> None:
    heard = read_all_ways("[THINK]a </think> b[/THINK]c", marks=Marks("[THINK]", "[/THINK]"))
    assert (heard.reasoning, heard.content) == ("a </think> b", "c")


def test_without_marks_all_is_content() -> None:
    text = " <think>\na\n</think>\n<tool_call>\n{}\n</tool_call>\n"
    assert read_all_ways(text).content == text


def test_text_comes_out_as_soon_as_it_is_no_mark() -> None:
    parser = OutputParser(THINK, opened=True)
    assert parser.feed("so") == [Reasoning("so")]
    assert parser.feed(" \n") == []
    assert parser.feed("on </thi") == [Reasoning(" \non")]
    assert parser.feed("s") == [Reasoning(" </this")]
    assert parser.feed("</think>") == []
    assert parser.feed("\n\n") == []
    assert parser.feed("Yes") == [Content("Yes")]
    assert parser.feed(" \n") == [Content(" \n")]
    assert parser.flush() == []


PIECES = st.sampled_from(["a", " ", "\n", "<", "</", "think>", "<think>", "</think>", "</thi", "é", "🙂", "nk>"])


@given(st.lists(PIECES, max_size=20).map("".join), st.booleans(), st.lists(st.integers(0, 200), max_size=10))
def test_the_result_does_not_depend_on_how_the_text_was_cut(text: str, opened: bool, at: list[int]) -> None:
    assert read(cuts(text, at), marks=THINK, opened=opened) == read([text], marks=THINK, opened=opened)


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(st.lists(PIECES, max_size=20).map("".join), st.booleans())
def test_nothing_but_marks_and_the_space_beside_them_is_lost(text: str, opened: bool) -> None:
    heard = read([text], marks=THINK, opened=opened)
    unopened = text.strip().removeprefix(THINK.open)
    possible = (text, unopened, text.replace(THINK.close, "", 1), unopened.replace(THINK.close, "", 1))
    assert squeezed(heard.reasoning + heard.content) in map(squeezed, possible)
