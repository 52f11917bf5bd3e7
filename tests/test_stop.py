"""Stop strings, against a reference that looks at the whole text after every character."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.stop import StopMatcher

# Two letters make overlaps, borders and near misses the rule.
letters = st.text(alphabet="ab", max_size=20)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that is complete first (the longest of several), and that stop."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stops: list[str]) -> int:
    """Characters at the end of `text` that could still become a stop."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


def run(chunks: list[str], stops: list[str]) -> tuple[str, str | None]:
    """Everything emitted, and the stop found."""
    matcher, parts = StopMatcher(stops), []
    for chunk in chunks:
        emitted, matched = matcher.feed(chunk)
        parts.append(emitted)
        if matched is not None:
            return "".join(parts), matched
    return "".join([*parts, matcher.flush()]), None


@given(st.lists(letters, max_size=8), stop_lists)
def test_any_chunking_gives_the_reference_answer(chunks: list[str], stops: list[str]) -> None:
    assert run(chunks, stops) == reference("".join(chunks), stops)


@given(letters, stop_lists)
def test_all_chunkings_in_two_and_one_by_one(text: str, stops: list[str]) -> None:
    expected = reference(text, stops)
    assert run(list(text), stops) == expected
    for cut in range(len(text) + 1):
        assert run([text[:cut], text[cut:]], stops) == expected


@given(st.lists(letters, max_size=8), stop_lists)
def test_exactly_what_could_become_a_stop_is_held_back(chunks: list[str], stops: list[str]) -> None:
    matcher, seen, sent = StopMatcher(stops), "", ""
    for chunk in chunks:
        emitted, matched = matcher.feed(chunk)
        if matched is not None:
            return
        seen, sent = seen + chunk, sent + emitted
        assert sent == seen[: len(seen) - held_back(seen, stops)]


def test_a_stop_over_three_chunks() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("hello\n") == ("hello", None)
    assert matcher.feed("\nUs") == ("", None)
    assert matcher.feed("er: more") == ("", "\n\nUser:")
    assert matcher.feed("anything") == ("", "\n\nUser:")
    assert matcher.flush() == ""


def test_a_near_miss_comes_out_whole() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("ST") == ("", None)
    assert matcher.feed("AR STO") == ("STAR ", None)
    assert matcher.flush() == "STO"
    assert matcher.flush() == ""


def test_the_stop_complete_first_wins_however_the_text_comes() -> None:
    for chunks in (["xabcd"], list("xabcd")):
        assert run(chunks, ["abcd", "bc"]) == ("xa", "bc")
        assert run(chunks, ["bc", "abc"]) == ("x", "abc")


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_no_stops_and_empty_stops_never_stop(stops: list[str]) -> None:
    assert run(["a", "", "b"], stops) == ("ab", None)


@pytest.mark.parametrize("stop", [*list("[]^-\\&|~.*#"), "^]", "--", "[[", "é€😀"])
def test_stops_are_text_and_not_patterns(stop: str) -> None:
    assert run(["x.y", stop, "z"], [stop, stop]) == (reference(f"x.y{stop}z", [stop])[0], stop)


def test_repetitive_stops_cost_linear_time() -> None:
    """Looking at all that is held back again for each character would be billions of comparisons here."""
    size = 50_000
    stops = ["a" * size + "b", "a" * size + "c", "a" * (size // 2) + "d"]
    began = time.process_time()
    text, matched = run(["a"] * (2 * size) + ["x"], stops)
    assert (len(text), matched) == (2 * size + 1, None)
    assert time.process_time() - began < 10
